"""The frameworks of one Python: version, what they were built with, launchers, what is missing."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from allranks.integrations.frameworks import missing_requirements as missing
from allranks.integrations.frameworks.import_probe import ImportResult, probe_horovod, probe_mpi4py
from allranks.integrations.frameworks.missing_requirements import MissingRequirement
from allranks.integrations.frameworks.python_environment import PythonEnvironment
from allranks.integrations.frameworks.system_programs import (
    Program,
    find_compilers,
    find_mpirun,
    mpi_headers,
)

LAUNCHERS: dict[str, tuple[str, ...]] = {
    "torch": ("fork", "srun", "torchrun", "launch", "python", "mpirun"),
    "DeepSpeed": ("deepspeed", "fork", "srun", "torchrun", "launch", "accelerate", "mpirun"),
    "Accelerate": ("accelerate", "fork", "srun", "torchrun", "launch", "deepspeed", "mpirun"),
    "transformers": ("accelerate", "fork", "srun", "torchrun", "launch", "deepspeed", "mpirun"),
    "Horovod": ("horovod", "srun", "fork", "torchrun", "launch", "mpirun"),
    "TensorFlow": ("srun", "fork", "torchrun", "python", "mpirun"),
    "mpi4py": ("mpirun", "srun"),
    "MPI": ("mpirun",),
}
"""The launchers that start a script of this framework, the usual one first."""


@dataclass(frozen=True)
class Framework:
    """A framework, installed or not."""

    name: str
    version: str | None
    parts: dict[str, Any] = field(default_factory=dict)
    """What it was built with, or what it found."""
    launchers: tuple[str, ...] = ()
    missing: list[MissingRequirement] = field(default_factory=list)


@dataclass(frozen=True)
class Tools:
    """Programs beside Python, and what packages reported when they were imported."""

    mpirun: Program | None = None
    mpi_headers: Program | None = None
    compilers: dict[str, Program | None] = field(default_factory=dict)
    answers: dict[str, ImportResult] = field(default_factory=dict)


@dataclass(frozen=True)
class Inventory:
    """The frameworks and tools of one Python environment."""

    target: PythonEnvironment
    frameworks: list[Framework]
    tools: Tools

    def as_data(self) -> dict[str, Any]:
        """Return the data of ``--json``."""
        about = self.target.about
        programs = {**self.tools.compilers, "mpirun": self.tools.mpirun}
        return {
            "python": {"executable": self.target.python, "version": about["version"]},
            "frameworks": [
                {
                    "name": each.name,
                    "version": each.version,
                    "built_with": each.parts,
                    "launchers": list(each.launchers),
                    "missing": [{"what": one.what, "type": one.command} for one in each.missing],
                }
                for each in self.frameworks
            ],
            "programs": {name: _program(program) for name, program in programs.items()},
            "mpi_headers": _program(self.tools.mpi_headers),
        }


def _program(program: Program | None) -> dict[str, str] | None:
    if program is None:
        return None
    return {"path": program.path, "kind": program.kind, "version": program.version}


def take_inventory(target: PythonEnvironment) -> Inventory:
    """Inspect all frameworks of a Python environment."""
    tools = find_tools(target)
    rows = [
        _torch(target),
        *(_package(target, tools, name) for name in ("DeepSpeed", "Accelerate", "transformers")),
        _horovod(target, tools),
        _tensorflow(target),
        _mpi4py(target, tools),
        _mpi(tools),
    ]
    able = usable_launchers(target, tools)
    rows = [replace(row, launchers=tuple(x for x in row.launchers if x in able)) for row in rows]
    return Inventory(target, rows, tools)


def usable_launchers(target: PythonEnvironment, tools: Tools) -> set[str]:
    """Return the launchers whose own program is installed."""
    needs = {
        "torchrun": target.torch,
        "launch": target.torch,
        "accelerate": target.packages["accelerate"],
        "deepspeed": target.packages["deepspeed"],
        "horovod": target.horovod,
        "mpirun": tools.mpirun,
    }
    return {"fork", "srun", "python", *(name for name, found in needs.items() if found)}


def find_tools(target: PythonEnvironment) -> Tools:
    """Find the programs, and import the packages that must be imported to know them."""
    probes: dict[str, Callable[[], ImportResult]] = {}
    for part in ("torch", "tensorflow"):
        if target.horovod and target.horovod[part]:
            probes[part] = lambda part=part: probe_horovod(target, part)  # type: ignore[misc]
    if target.packages["mpi4py"]:
        probes["mpi4py"] = lambda: probe_mpi4py(target)
    with ThreadPoolExecutor(max_workers=8) as pool:
        started = {name: pool.submit(probe) for name, probe in probes.items()}
        mpirun, headers = pool.submit(find_mpirun, target), pool.submit(mpi_headers, target)
        compilers = find_compilers(target)
        answers = {name: future.result() for name, future in started.items()}
        return Tools(mpirun.result(), headers.result(), compilers, answers)


def _torch(target: PythonEnvironment) -> Framework:
    if target.torch is None:
        return Framework("torch", None, missing=[missing.package(target, "torch")])
    parts = {name: target.torch[name] for name in ("cuda", "rocm", "nccl", "gloo", "mpi")}
    return Framework("torch", target.torch["version"], parts, LAUNCHERS["torch"])


def _package(target: PythonEnvironment, tools: Tools, name: str) -> Framework:
    """A package on top of torch."""
    version = target.packages[name.lower()]
    if version is None:
        return Framework(name, None, missing=[missing.package(target, name.lower())])
    lacks = [] if target.torch else [missing.package(target, "torch")]
    if name == "DeepSpeed":
        lacks += missing.compilers(tools.compilers, ("g++", "ninja"), "to build its operators")
    return Framework(name, version, {}, LAUNCHERS[name], lacks)


def _horovod(target: PythonEnvironment, tools: Tools) -> Framework:
    found = target.horovod
    if found is None or not found["version"]:
        return Framework("Horovod", None, missing=[missing.horovod(target)])
    parts: dict[str, Any] = {"torch": found["torch"], "tensorflow": found["tensorflow"]}
    for part in ("torch", "tensorflow"):
        if part in tools.answers:
            parts.update(tools.answers[part].values)
    unfit: tuple[str, ...] = () if parts.get("mpi") else ("mpirun",)
    unfit += () if found["torch"] else ("torchrun", "launch")  # torch's own
    launchers = tuple(name for name in LAUNCHERS["Horovod"] if name not in unfit)
    return Framework(
        "Horovod", found["version"], parts, launchers, missing.in_horovod(target, tools.answers)
    )


def _tensorflow(target: PythonEnvironment) -> Framework:
    version = target.tensorflow
    if version is None:
        return Framework("TensorFlow", None, missing=[missing.package(target, "tensorflow")])
    parts = {name: target.packages[name] for name in ("keras", "tf_keras")}
    lacks = missing.keras(target)
    return Framework("TensorFlow", version, parts, LAUNCHERS["TensorFlow"], lacks)


def _mpi4py(target: PythonEnvironment, tools: Tools) -> Framework:
    version = target.packages["mpi4py"]
    if version is None:
        return Framework("mpi4py", None, missing=[missing.package(target, "mpi4py")])
    answer = tools.answers["mpi4py"]
    parts = {"library": answer.values.get("library") or None}
    lacks = missing.mpi_library(target, answer, tools.mpirun.kind if tools.mpirun else None)
    return Framework("mpi4py", version, parts, LAUNCHERS["mpi4py"], lacks)


def _mpi(tools: Tools) -> Framework:
    if tools.mpirun is None:
        return Framework("MPI", None, missing=[missing.mpirun()])
    parts = {"kind": tools.mpirun.kind, "path": tools.mpirun.path}
    return Framework("MPI", tools.mpirun.version, parts, LAUNCHERS["MPI"])
