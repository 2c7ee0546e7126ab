"""How Horovod is built: frameworks, MPI, NCCL and the patches of its source, decided before anything is done."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from allranks.errors import AllranksError, MissingDependencyError, UsageError
from allranks.integrations.frameworks.missing_requirements import pip_forbidden
from allranks.integrations.frameworks.python_environment import PythonEnvironment
from allranks.integrations.frameworks.system_programs import Program, install_command, mpi_headers
from allranks.integrations.frameworks.wheel_cache import file_name_part

VERSION = "0.28.1"
SDIST = f"horovod-{VERSION}.tar.gz"
SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
PER_COMPILER = 2 * 1024**2
"""KiB that one compilation against torch's headers may take."""


REVISION = 1
"""Counts up when a fix changes: wheels of older fixes are then built again."""


@dataclass(frozen=True)
class Patch:
    """One fix of Horovod 0.28.1's source: a pattern and its replacement, in some files."""

    title: str
    files: tuple[str, ...]
    pattern: str
    replacement: str

    def apply(self, source: Path) -> None:
        """Change the files; the pattern must be in each."""
        for name in self.files:
            path = source / name
            text, count = re.subn(self.pattern, self.replacement, path.read_text(encoding="utf-8"))
            if not count:
                raise AllranksError(
                    f"The source is not the one that was expected: {name} has no '{self.pattern}'."
                )
            path.write_text(text, encoding="utf-8")


CXX17 = Patch(
    "C++17, which torch's headers ask for",
    ("CMakeLists.txt", "horovod/torch/CMakeLists.txt"),
    r"CMAKE_CXX_STANDARD 14",
    "CMAKE_CXX_STANDARD 17",
)
NO_XLA = Patch(
    "without xla_mpi_ops.cc, whose headers TensorFlow's wheel does not ship",
    ("horovod/tensorflow/CMakeLists.txt",),
    r".*xla_mpi_ops\.cc.*\n",
    "",
)
LEGACY_KERAS = Patch(
    "tf_keras in place of Keras 3, which Horovod cannot train",
    ("horovod/tensorflow/keras/__init__.py", "horovod/tensorflow/keras/callbacks.py"),
    r"from keras import backend as K",
    "from tf_keras import backend as K",
)


def patches_for(torch: bool, tensorflow: bool, tf_keras: bool) -> list[Patch]:
    """Return the patches that a build for these frameworks needs."""
    chosen = [CXX17] if torch else []
    chosen += [NO_XLA] if tensorflow else []
    return chosen + ([LEGACY_KERAS] if tensorflow and tf_keras else [])


def apply_patches(patches: Iterable[Patch], source: Path) -> None:
    """Apply the patches in order."""
    for patch in patches:
        patch.apply(source)


@dataclass(frozen=True)
class HorovodPlan:
    """One build."""

    target: PythonEnvironment
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
        """The wheel's name in the cache: everything that it depends on."""
        about = self.target.about
        words = [
            f"horovod{VERSION}", f"r{REVISION}", about["tag"], about["platform"],
            f"torch{self.torch}" if self.torch else "",
            f"tensorflow{self.tensorflow}" if self.tensorflow else "",
            "tf_keras" if self._tf_keras else "",
            self.mpi.title if self.mpi else "nompi",
            "nccl" if self.nccl else "",
        ]  # fmt: skip
        return "-".join(file_name_part(word) for word in words if word)

    @property
    def variables(self) -> dict[str, str]:
        """Horovod's own switches for the build."""
        chosen = {
            "HOROVOD_WITH_GLOO": "1",
            "HOROVOD_WITHOUT_MXNET": "1",
            "HOROVOD_WITH_MPI" if self.mpi else "HOROVOD_WITHOUT_MPI": "1",
            "HOROVOD_WITH_PYTORCH" if self.torch else "HOROVOD_WITHOUT_PYTORCH": "1",
            "HOROVOD_WITH_TENSORFLOW" if self.tensorflow else "HOROVOD_WITHOUT_TENSORFLOW": "1",
            "MAKEFLAGS": os.environ.get("MAKEFLAGS") or f"-j{compile_jobs()}",
            "CMAKE_POLICY_VERSION_MINIMUM": "3.5",  # CMake 4 refuses gloo's old minimum without it
        }
        if self.nccl:
            chosen |= {"HOROVOD_GPU_OPERATIONS": "NCCL", "HOROVOD_NCCL_LINK": "SHARED"}
        return chosen


def plan_horovod(target: PythonEnvironment, frameworks: str, mpi: bool | None) -> HorovodPlan:
    """Plan the build that ``--with`` and ``--mpi`` ask for in this Python."""
    if target.is_managed:
        raise UsageError(pip_forbidden(target))
    torch, tensorflow = _frameworks(target, frameworks)
    library, note = _mpi(target, mpi)
    nccl, other = _nccl(target, torch)
    keras = _keras_note(target) if tensorflow else ""
    notes = tuple(filter(None, (note, other, keras)))
    return HorovodPlan(target, torch, tensorflow, library, nccl, notes, mpi is False)


def _frameworks(target: PythonEnvironment, asked: str) -> tuple[str | None, str | None]:
    torch = target.torch["version"] if target.torch else None
    there = {"torch": torch, "tensorflow": target.tensorflow}
    wanted = {"auto": [name for name in there if there[name]], "both": list(there)}
    chosen = wanted.get(asked, [asked])
    absent = [name for name in chosen if not there[name]]
    if absent or not chosen:
        name = " and ".join(absent) or "torch or TensorFlow"
        raise MissingDependencyError(
            f"Horovod is built for a framework that is there, but {target.python} has no {name}.\n"
            f"Install it first: {target.pip_command('install', *(absent or ['torch']))}"
        )
    return (
        torch if "torch" in chosen else None,
        target.tensorflow if "tensorflow" in chosen else None,
    )


def _mpi(target: PythonEnvironment, asked: bool | None) -> tuple[Program | None, str]:
    if asked is False:
        return None, ""
    library = mpi_headers(target)
    if library:
        return library, ""
    lack = "mpicxx finds no mpi.h" if target.program("mpicxx") else "there is no mpicxx on PATH"
    if asked:
        raise MissingDependencyError(
            f"Horovod was asked for with MPI, but {lack}.\n"
            f"Install it ({install_command('mpi.h')}), or build with gloo alone: --no-mpi"
        )
    return None, f"without MPI ({lack}): Horovod will use gloo, and not run under mpirun"


def _nccl(target: PythonEnvironment, torch: str | None) -> tuple[str | None, str]:
    """Return NCCL's folder, when torch has CUDA and everything to compile against it is found."""
    if not torch or not (target.torch and target.torch["cuda"]):
        return None, ""
    home = os.environ.get("HOROVOD_NCCL_HOME") or target.facts["nccl"]
    if home is None and Path("/usr/include/nccl.h").exists():
        home = "/usr"
    if home and target.program("nvcc"):
        return home, ""
    lack = "nvcc is not on PATH" if home else "NCCL's headers are not found (HOROVOD_NCCL_HOME)"
    return None, f"without NCCL ({lack}): Horovod will not take GPU tensors, CPU tensors alone"


def _keras_note(target: PythonEnvironment) -> str:
    keras3 = not (target.packages["keras"] or "0").startswith(("0", "1.", "2."))
    if not keras3 or target.packages["tf_keras"]:
        return ""
    return "without Keras: Horovod needs tf_keras for that; install it first if you use Keras"


def compile_jobs() -> int:
    """Return how many compilers to run at a time: as many as the CPUs and the memory allow."""
    cpus = len(os.sched_getaffinity(0))
    memory = Path("/proc/meminfo").read_text(encoding="ascii")
    free = next(int(line.split()[1]) for line in memory.splitlines() if "MemAvailable" in line)
    return max(1, min(cpus, free // PER_COMPILER))
