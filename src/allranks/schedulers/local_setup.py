"""The environment of a job on this machine: its interpreter, its set-up lines, its MPI.

A job file describes the modules and environments of the cluster, which this machine need not have: they
are not set up here. What is given for this very start is, by the same shell lines as in a job script.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from allranks.core.shell import quote
from allranks.errors import JobError, MissingDependencyError
from allranks.job.environments import setup_lines, variable_lines
from allranks.job.fields import Job
from allranks.job.plan import Plan

_STRICT = "set -eo pipefail"
"""The set-up runs under it, as in a job script: the first failure ends it."""
_FIELDS = ("modules", "module_purge", "setup", "conda", "venv", "uv", "setup_commands", "container")
_GIVEN_NOW = ("command line", "Python")


def interpreter_and_setup(plan: Plan, python: str) -> tuple[str, list[str]]:
    """Return the interpreter, and the set-up lines that this start asks for."""
    unset = Job()
    others = {name: getattr(unset, name) for name in _FIELDS if not _is_given_now(plan, name)}
    setup = setup_lines(replace(plan.job, **{**others, "container": None}))
    if setup and not plan.job.python:
        # The set-up may put another interpreter first; else it is the one used without a set-up.
        return "python3", [f'PATH={quote(str(Path(python).parent))}:"$PATH"', *setup]
    return python, setup


def unused_settings_note(plan: Plan) -> str:
    """Return a note on what of the environment is not used here; empty when that is nothing."""
    given = [name for name in _FIELDS if getattr(plan.job, name)]
    unused = [name for name in given if name == "container" or not _is_given_now(plan, name)]
    if not unused:
        return ""
    advice = " Give it on the command line to set it up here." if unused != ["container"] else ""
    return f"Not used on this machine: {', '.join(unused)}.{advice}"


def wrap_command(lines: list[str], plan: Plan, library: Path, words: list[str]) -> list[str]:
    """Return the command behind its set-up, as one process; the job's variables win over the set-up."""
    if not lines:
        return words
    path = f'export PYTHONPATH={quote(str(library))}"${{PYTHONPATH:+:$PYTHONPATH}}"'
    after = [*variable_lines(plan.job), path, 'exec "$@"']
    return ["bash", "-c", "\n".join([_STRICT, *lines, *after]), "setup", *words]


def check_launcher(plan: Plan, python: str) -> None:
    """Refuse a launcher whose package is missing, as far as that can be seen from here."""
    launcher = plan.launcher
    if launcher.module and python == sys.executable and find_spec(launcher.module) is None:
        raise MissingDependencyError(
            f"The {launcher.name} launcher needs the '{launcher.module}' package.\n"
            f"Install it with: {launcher.install or f'pip install {launcher.module}'}"
        )


def mpi_family(setup: list[str]) -> str:
    """Return whose mpirun is on the PATH: they take different options."""
    command = [
        "bash",
        "-c",
        "\n".join([_STRICT, *setup, "type -P mpirun >/dev/null || exit 127", "mpirun --version"]),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 127):
        printed = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
        raise JobError(f"The set-up of the environment failed: {printed}")
    if done.returncode:
        raise MissingDependencyError(
            "There is no mpirun on the PATH. Load its module, install Open MPI or MPICH, "
            "or choose another --launcher."
        )
    return "openmpi" if "Open MPI" in done.stdout else "mpich"


def _is_given_now(plan: Plan, name: str) -> bool:
    origin = plan.origins.get(name)
    return origin is not None and origin.source in _GIVEN_NOW
