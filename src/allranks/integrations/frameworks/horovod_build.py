"""Builds Horovod's wheel from source, in a temporary folder and environment.

The build needs an old setuptools and some packages. They go into a temporary venv that sees the target's
packages through a ``.pth`` file, so that the target itself gets the finished wheel and nothing else.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from allranks.errors import MissingDependencyError
from allranks.integrations.frameworks.build_commands import OnLine, run_logged
from allranks.integrations.frameworks.build_failure import (
    build_error,
    download_error,
    require_compiler,
)
from allranks.integrations.frameworks.horovod_plan import (
    SDIST,
    SHA256,
    VERSION,
    HorovodPlan,
    apply_patches,
)
from allranks.integrations.frameworks.wheel_cache import copy_to_cache, wheels_folder

BUILD_PACKAGES = (
    "setuptools==80.9.0", "wheel", "packaging", "cloudpickle", "psutil", "pyyaml", "cffi",
)  # fmt: skip
"""setup.py needs pkg_resources, which setuptools 81 no longer has."""
_PERCENT = re.compile(r"^\[\s*(\d+)%\]")

OnProgress = Callable[[str, "int | None"], None]
"""Called with each stage, and with its percentage where that is known."""


@dataclass(frozen=True)
class BuildFolder:
    """A temporary folder with the build's Python, and the log of all commands."""

    folder: Path
    plan: HorovodPlan
    log: IO[str]

    @property
    def python(self) -> str:
        return str(self.folder / "env" / "bin" / "python")

    @property
    def environ(self) -> dict[str, str]:
        target = self.plan.target
        search = os.pathsep.join([str(Path(self.python).parent), target.search_path])
        cmake = shutil.which("cmake", path=search) or "cmake"
        own = {"PATH": search, "HOROVOD_CMAKE": cmake, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        if self.plan.nccl:
            own["HOROVOD_NCCL_HOME"] = str(self.folder / "nccl")
        return {**target.process_environment(), **self.plan.variables, **own}

    def run(self, *words: str, cwd: Path | None = None, on_line: OnLine | None = None) -> int:
        """Run a command in the build's environment."""
        return run_logged(words, self.log, self.environ, cwd, on_line)


@contextmanager
def build_folder(plan: HorovodPlan, log: IO[str]) -> Iterator[BuildFolder]:
    """Make the folder, and remove it afterwards."""
    with tempfile.TemporaryDirectory(prefix="allranks-horovod-") as folder:
        yield BuildFolder(Path(folder), plan, log)


def build(shop: BuildFolder, report: OnProgress) -> Path:
    """The wheel, in the build_folder's folder."""
    require_compiler(shop.plan.target)
    report("preparing the build's own environment", None)
    make_environment(shop)
    report(f"fetching {SDIST}", None)
    source = unpack(fetch(shop), shop.folder / "source")
    for patch in shop.plan.patches:
        report(f"patching: {patch.title}", None)
    apply_patches(shop.plan.patches, source)
    if shop.plan.nccl:
        link_nccl(Path(shop.plan.nccl), shop.folder / "nccl")
    return compile_wheel(shop, source, report)


def make_environment(shop: BuildFolder) -> None:
    """Make a venv of the same Python, with the build's packages before the target's."""
    target = shop.plan.target
    if run_logged(
        [target.python, "-m", "venv", str(shop.folder / "env")],
        shop.log,
        target.process_environment(),
    ):
        raise build_error(shop.log, "The build's environment could not be made.")
    version = ".".join(target.about["version"].split(".")[:2])
    packages = shop.folder / "env" / "lib" / f"python{version}" / "site-packages"
    lines = [f"import site; site.addsitedir({path!r})" for path in target.about["site"]]
    needed = list(BUILD_PACKAGES) + ([] if target.program("cmake") else ["cmake"])
    if shop.run(shop.python, "-m", "pip", "install", *needed):
        raise download_error(shop.log, "The build's packages", " ".join(needed))
    (packages / "target.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")


def fetch(shop: BuildFolder) -> Path:
    """Return the source archive from the cache; pip downloads it first where it is not there."""
    cached = wheels_folder() / SDIST
    if not cached.exists():
        words = ["--no-deps", "--no-binary", ":all:", "--no-build-isolation", f"horovod=={VERSION}"]
        if shop.run(shop.python, "-m", "pip", "download", *words, "-d", str(shop.folder)):
            raise download_error(shop.log, SDIST, f"--no-deps --no-binary :all: horovod=={VERSION}")
        copy_to_cache(shop.folder / SDIST, cached)
    if hashlib.sha256(cached.read_bytes()).hexdigest() != SHA256:
        raise MissingDependencyError(
            f"{cached} is not Horovod's own archive: its SHA-256 differs.\nRemove it: rm {cached}"
        )
    return cached


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack the archive and return its folder."""
    with tarfile.open(archive) as file:
        if sys.version_info >= (3, 12) or hasattr(tarfile, "data_filter"):
            file.extractall(folder, filter="data")
        else:
            file.extractall(folder)  # its hash was checked
    return folder / SDIST.removesuffix(".tar.gz")


def link_nccl(home: Path, folder: Path) -> None:
    """Link NCCL where the build looks for it: pip's package has no plain ``libnccl.so``."""
    (folder / "lib").mkdir(parents=True)
    (folder / "include").symlink_to(home / "include")
    library = next(iter(sorted((home / "lib").glob("**/libnccl.so*"))), home / "lib" / "libnccl.so")
    (folder / "lib" / "libnccl.so").symlink_to(library)


def compile_wheel(shop: BuildFolder, source: Path, report: OnProgress) -> Path:
    """Configure, compile and pack the wheel."""
    last = -1

    def report_line(line: str) -> None:
        nonlocal last
        if match := _PERCENT.match(line):
            if int(match[1]) > last:
                last = int(match[1])
                report("compiling", last)
        elif line.startswith("running build_ext"):
            report("configuring", None)
        elif line.startswith("running install_lib"):
            report("packing the wheel", None)

    words = [shop.python, "setup.py", "bdist_wheel", "--dist-dir", str(shop.folder / "dist")]
    code = shop.run(*words, cwd=source, on_line=report_line)
    wheels = sorted((shop.folder / "dist").glob("horovod-*.whl"))
    if code or not wheels:
        raise build_error(shop.log, "Horovod could not be built.")
    return wheels[0]
