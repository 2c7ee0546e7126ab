"""The MPI programs and compilers on PATH, and their versions."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass

from allranks.integrations.frameworks.python_environment import PythonEnvironment

COMPILERS = ("g++", "cmake", "ninja", "make")
_VERSION = re.compile(r"\b(\d+\.\d+(?:\.\d+)*)\b")
_MPIS = (
    ("Open MPI", re.compile(r"\(Open MPI\) (\S+)")),
    ("Intel MPI", re.compile(r"Intel\(R\) MPI Library.*?Version (\S+)")),
    ("MPICH", re.compile(r"HYDRA build details:.*?Version:\s+(\S+)", re.DOTALL)),
)
_MACROS = (
    ("Intel MPI", ('I_MPI_VERSION "{}"',)),
    ("MPICH", ('MPICH_VERSION "{}"',)),
    ("Open MPI", ("OMPI_MAJOR_VERSION {}", "OMPI_MINOR_VERSION {}", "OMPI_RELEASE_VERSION {}")),
)
"""How each MPI's header states its version; Intel's also calls itself MPICH, so it comes first."""

INSTALL = {
    "g++": ("g++", "gcc-c++"),
    "make": ("make", "make"),
    "cmake": ("cmake", "cmake"),
    "ninja": ("ninja-build", "ninja-build"),
    "mpirun": ("openmpi-bin", "openmpi"),
    "mpi.h": ("libopenmpi-dev", "openmpi-devel"),
    "Python.h": ("python3-dev", "python3-devel"),
    "venv": ("python3-venv", "python3"),
}
"""A program or file, and its package in Debian's and in Red Hat's family."""


@dataclass(frozen=True)
class Program:
    """A program on PATH."""

    path: str
    kind: str
    version: str

    @property
    def title(self) -> str:
        return f"{self.kind} {self.version}".strip()


def find_mpirun(target: PythonEnvironment) -> Program | None:
    """Find ``mpirun`` as a job finds it, and which MPI it belongs to."""
    path = target.program("mpirun") or target.program("mpiexec")
    if path is None:
        return None
    text = _output([path, "--version"], target)
    for kind, pattern in _MPIS:
        if match := pattern.search(text):
            return Program(path, kind, match[1].rstrip(","))
    first = (text.strip().splitlines() or [""])[0]
    return Program(path, "MPI of an unknown kind", first[:40])


def find_compilers(target: PythonEnvironment) -> dict[str, Program | None]:
    """Find g++, cmake, ninja and make."""
    return {name: _tool(name, target) for name in COMPILERS}


def _tool(name: str, target: PythonEnvironment) -> Program | None:
    path = target.program(name)
    if path is None:
        return None
    match = _VERSION.search(_output([path, "--version"], target))
    return Program(path, name, match[1] if match else "")


def mpi_headers(target: PythonEnvironment) -> Program | None:
    """Return the MPI that a C++ program is compiled with; None where ``mpi.h`` cannot be included.

    ``mpicxx`` alone proves nothing: distributions ship it with the runtime and the headers apart.
    """
    path = target.program("mpicxx")
    if path is None:
        return None
    text = _output([path, "-E", "-dM", "-x", "c++", "-"], target, "#include <mpi.h>\n")
    for kind, forms in _MACROS:
        found = [_macro(form, text) for form in forms]
        if all(found):
            return Program(path, kind, ".".join(filter(None, found)))
    return Program(path, "MPI", "") if "MPI_VERSION" in text else None


def _macro(form: str, text: str) -> str | None:
    pattern = re.escape(form).replace(r"\{\}", r"([\w.]+)").replace(r"\ ", r"\s+")
    match = re.search(rf"#define {pattern}", text)
    return match[1] if match else None


def install_command(name: str) -> str:
    """Return the command that installs a program on this machine."""
    debian, redhat = INSTALL[name]
    if shutil.which("apt-get"):
        return f"apt-get install {debian}"
    if shutil.which("dnf"):
        return f"dnf install {redhat}"
    return f"module avail   (a module with {name}; on Debian the package is {debian})"


def _output(words: list[str], target: PythonEnvironment, text: str = "") -> str:
    try:
        done = subprocess.run(
            words, input=text, env=target.process_environment(), capture_output=True, text=True,
            timeout=20, check=False, errors="replace",
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr if done.returncode == 0 else ""
