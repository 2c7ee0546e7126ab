"""Errors of a failed build: the compiler's messages, a likely cause, and what to type."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from pathlib import Path
from typing import IO

from allranks.errors import AllranksError, MissingDependencyError
from allranks.integrations.frameworks.python_environment import PythonEnvironment
from allranks.integrations.frameworks.system_programs import install_command
from allranks.integrations.frameworks.wheel_cache import wheels_folder

_ERROR = re.compile(
    r"(\berror:|CMake Error|\bError:|No such file or directory|ModuleNotFoundError)"
)
_NOISE = re.compile(r"subprocess-exited-with-error|CalledProcessError|Command '\[")
SHOWN = 6

CAUSES = (
    (r"No space left on device", "The disk is full: set TMPDIR to a folder with 2 GB free."),
    (r"Killed|cannot allocate memory|out of memory",
     "The compiler ran out of memory: try fewer at a time: MAKEFLAGS=-j1 allranks frameworks …"),
    (r"No module named 'pkg_resources'", "setuptools is too new: the build needs one below 81."),
    (r"Python\.h: No such file", "Python's headers are missing: {Python.h}"),
    (r"mpi\.h: No such file|MPI_CXX|FindMPI",
     "MPI's headers do not work: {mpi.h}, or build with --no-mpi"),
    (r"ensurepip", "This Python cannot make a venv: {venv}"),
    (r"CMAKE_CXX_COMPILER|No CMAKE_CXX_COMPILER could be found", "No C++ compiler: {g++}"),
    (r"CMAKE_MAKE_PROGRAM|Could not find.*make", "There is no make: {make}"),
    (r"#error.*C\+\+20|requires C\+\+20",
     "This torch asks for C++20, and Horovod is built as C++17, which torch 2.13 still takes."),
)  # fmt: skip
"""A pattern in the log, and what it means; ``{name}`` becomes the command that installs it."""


def require_compiler(target: PythonEnvironment) -> None:
    """Require a C++ compiler, make and Python's headers before minutes are spent."""
    compiler = (shlex.split(os.environ.get("CXX", "")) or ["g++"])[0]
    needs = {
        "g++": shutil.which(compiler, path=target.search_path) is not None,
        "make": target.program("make") is not None,
        "Python.h": bool(target.about["headers"]),
    }
    absent = [name for name, there in needs.items() if not there]
    if not absent:
        return
    places = {"Python.h": f"Python.h (in {target.about['include']})", "g++": compiler}
    names = " and ".join(places.get(name, name) for name in absent)
    commands = "\n".join(f"Install it: {install_command(name)}" for name in absent)
    raise MissingDependencyError(f"Horovod is compiled, but {names} cannot be found.\n{commands}")


def build_error(log: IO[str], what: str) -> AllranksError:
    """Return the error for a build that failed."""
    log.flush()
    text = Path(log.name).read_text(encoding="utf-8", errors="replace")
    lines = [what, *(f"  {line}" for line in error_lines(text))]
    if cause := likely_cause(text):
        lines.append(cause)
    return AllranksError("\n".join([*lines, f"The whole log: {log.name}"]))


def error_lines(text: str) -> list[str]:
    """Return the last lines that name an error, each once."""
    found = [line.strip() for line in text.splitlines() if _ERROR.search(line)]
    shown = list(dict.fromkeys(line for line in found if not _NOISE.search(line)))
    return [line[:300] for line in shown[-SHOWN:]]


def likely_cause(text: str) -> str:
    """Return one sentence, or nothing; only lines near errors are searched, since others name everything."""
    lines = text.splitlines()
    places = [number for number, line in enumerate(lines) if _ERROR.search(line)]
    near = "\n".join(line for place in places for line in lines[place : place + 6])
    for pattern, meaning in CAUSES:
        if re.search(pattern, near):
            return re.sub(r"\{([^}]+)\}", lambda match: install_command(match[1]), meaning)
    return ""


def download_error(log: IO[str], what: str, words: str) -> MissingDependencyError:
    """Return the error for a download that failed: mostly there is no network."""
    log.flush()
    text = Path(log.name).read_text(encoding="utf-8", errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.startswith("ERROR:")][-2:]
    return MissingDependencyError(
        "\n".join(
            [
                f"{what} could not be fetched; perhaps there is no network here.",
                *(f"  {line}" for line in lines),
                "Where there is one: pip download " + words,
                f"Then bring the files: an archive to {wheels_folder()}/, wheels with PIP_FIND_LINKS=FOLDER.",
                f"The whole log: {log.name}",
            ]
        )
    )
