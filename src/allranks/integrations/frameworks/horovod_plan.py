"""What Horovod is to be built of: decided before anything is done, so that it can be shown."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from allranks.errors import MissingDependencyError, UsageError
from allranks.integrations.frameworks.missing import pip_forbidden
from allranks.integrations.frameworks.patches import REVISION, Patch, patches_for
from allranks.integrations.frameworks.programs import Program, how_to_get, mpi_headers
from allranks.integrations.frameworks.target import Target
from allranks.integrations.frameworks.wheel_cache import plain

VERSION = "0.28.1"
SDIST = f"horovod-{VERSION}.tar.gz"
SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
PER_COMPILER = 2 * 1024**2
"""KiB that one compilation against torch's headers may take."""


@dataclass(frozen=True)
class HorovodPlan:
    """One build."""

    target: Target
    torch: str | None
    tensorflow: str | None
    mpi: Program | None
    nccl: str | None
    """The folder of NCCL's headers and library; None: GPU tensors cannot be reduced."""
    notes: tuple[str, ...] = ()
    no_mpi: bool = False
    """``--no-mpi`` was typed; without it an MPI that is built in already may stay."""

    @property
    def patches(self) -> list[Patch]:
        return patches_for(bool(self.torch), bool(self.tensorflow), self._tf_keras)

    @property
    def _tf_keras(self) -> bool:
        return bool(self.tensorflow and self.target.packages["tf_keras"])

    @property
    def parts(self) -> list[str]:
        """The frameworks, as Horovod names its parts."""
        return [
            name
            for name, version in (("torch", self.torch), ("tensorflow", self.tensorflow))
            if version
        ]

    @property
    def key(self) -> str:
        """Names the wheel in the cache: everything that it depends on."""
        about = self.target.about
        words = [
            f"horovod{VERSION}", f"r{REVISION}", about["tag"], about["platform"],
            f"torch{self.torch}" if self.torch else "",
            f"tensorflow{self.tensorflow}" if self.tensorflow else "",
            "tf_keras" if self._tf_keras else "",
            self.mpi.title if self.mpi else "nompi",
            "nccl" if self.nccl else "",
        ]  # fmt: skip
        return "-".join(plain(word) for word in words if word)

    @property
    def variables(self) -> dict[str, str]:
        """Horovod's own switches for the build."""
        chosen = {
            "HOROVOD_WITH_GLOO": "1",
            "HOROVOD_WITHOUT_MXNET": "1",
            "HOROVOD_WITH_MPI" if self.mpi else "HOROVOD_WITHOUT_MPI": "1",
            "HOROVOD_WITH_PYTORCH" if self.torch else "HOROVOD_WITHOUT_PYTORCH": "1",
            "HOROVOD_WITH_TENSORFLOW" if self.tensorflow else "HOROVOD_WITHOUT_TENSORFLOW": "1",
            "MAKEFLAGS": os.environ.get("MAKEFLAGS") or f"-j{jobs()}",
            "CMAKE_POLICY_VERSION_MINIMUM": "3.5",  # CMake 4 refuses gloo's old minimum without it
        }
        if self.nccl:
            chosen |= {"HOROVOD_GPU_OPERATIONS": "NCCL", "HOROVOD_NCCL_LINK": "SHARED"}
        return chosen


def plan_horovod(target: Target, frameworks: str, mpi: bool | None) -> HorovodPlan:
    """What ``--with`` and ``--mpi`` mean in this Python."""
    if target.managed:
        raise UsageError(pip_forbidden(target))
    torch, tensorflow = _frameworks(target, frameworks)
    library, note = _mpi(target, mpi)
    nccl, other = _nccl(target, torch)
    keras = _keras_note(target) if tensorflow else ""
    notes = tuple(filter(None, (note, other, keras)))
    return HorovodPlan(target, torch, tensorflow, library, nccl, notes, mpi is False)


def _frameworks(target: Target, asked: str) -> tuple[str | None, str | None]:
    torch = target.torch["version"] if target.torch else None
    there = {"torch": torch, "tensorflow": target.tensorflow}
    wanted = {"auto": [name for name in there if there[name]], "both": list(there)}
    chosen = wanted.get(asked, [asked])
    absent = [name for name in chosen if not there[name]]
    if absent or not chosen:
        name = " and ".join(absent) or "torch or TensorFlow"
        raise MissingDependencyError(
            f"Horovod is built for a framework that is there, but {target.python} has no {name}.\n"
            f"Install it first: {target.pip('install', *(absent or ['torch']))}"
        )
    return (
        torch if "torch" in chosen else None,
        target.tensorflow if "tensorflow" in chosen else None,
    )


def _mpi(target: Target, asked: bool | None) -> tuple[Program | None, str]:
    if asked is False:
        return None, ""
    library = mpi_headers(target)
    if library:
        return library, ""
    lack = "mpicxx finds no mpi.h" if target.program("mpicxx") else "there is no mpicxx on PATH"
    if asked:
        raise MissingDependencyError(
            f"Horovod was asked for with MPI, but {lack}.\n"
            f"Install it ({how_to_get('mpi.h')}), or build with gloo alone: --no-mpi"
        )
    return None, f"without MPI ({lack}): Horovod will use gloo, and not run under mpirun"


def _nccl(target: Target, torch: str | None) -> tuple[str | None, str]:
    """NCCL, when torch has CUDA and everything to compile against it is found."""
    if not torch or not (target.torch and target.torch["cuda"]):
        return None, ""
    home = os.environ.get("HOROVOD_NCCL_HOME") or target.facts["nccl"]
    if home is None and Path("/usr/include/nccl.h").exists():
        home = "/usr"
    if home and target.program("nvcc"):
        return home, ""
    lack = "nvcc is not on PATH" if home else "NCCL's headers are not found (HOROVOD_NCCL_HOME)"
    return None, f"without NCCL ({lack}): Horovod will not take GPU tensors, CPU tensors alone"


def _keras_note(target: Target) -> str:
    keras3 = not (target.packages["keras"] or "0").startswith(("0", "1.", "2."))
    if not keras3 or target.packages["tf_keras"]:
        return ""
    return "without Keras: Horovod needs tf_keras for that; install it first if you use Keras"


def jobs() -> int:
    """Compilers at a time: as many as the CPUs and the memory allow."""
    cpus = len(os.sched_getaffinity(0))
    memory = Path("/proc/meminfo").read_text(encoding="ascii")
    free = next(int(line.split()[1]) for line in memory.splitlines() if "MemAvailable" in line)
    return max(1, min(cpus, free // PER_COMPILER))
