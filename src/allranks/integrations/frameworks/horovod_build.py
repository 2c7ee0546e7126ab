"""Horovod's wheel, built from its source in a folder and an environment of its own.

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
from allranks.integrations.frameworks.build_failure import (
    build_failed,
    download_failed,
    must_compile,
)
from allranks.integrations.frameworks.horovod_plan import SDIST, SHA256, VERSION, HorovodPlan
from allranks.integrations.frameworks.patches import apply_all
from allranks.integrations.frameworks.processes import OnLine, run_logged
from allranks.integrations.frameworks.wheel_cache import keep, wheels_folder

BUILD_PACKAGES = (
    "setuptools==80.9.0", "wheel", "packaging", "cloudpickle", "psutil", "pyyaml", "cffi",
)  # fmt: skip
"""setup.py needs pkg_resources, which setuptools 81 no longer has."""
_PERCENT = re.compile(r"^\[\s*(\d+)%\]")

Tell = Callable[[str, "int | None"], None]
"""Hears of each stage, and of how much of it is done in percent where that is known."""


@dataclass(frozen=True)
class Workshop:
    """A temporary folder with the build's Python, and the log of all that is run in it."""

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
        return {**target.environ(), **self.plan.variables, **own}

    def run(self, *words: str, cwd: Path | None = None, on_line: OnLine | None = None) -> int:
        """Run a command as the build does."""
        return run_logged(words, self.log, self.environ, cwd, on_line)


@contextmanager
def workshop(plan: HorovodPlan, log: IO[str]) -> Iterator[Workshop]:
    """The folder, gone afterwards whatever happened."""
    with tempfile.TemporaryDirectory(prefix="allranks-horovod-") as folder:
        yield Workshop(Path(folder), plan, log)


def build(shop: Workshop, tell: Tell) -> Path:
    """The wheel, in the workshop's folder."""
    must_compile(shop.plan.target)
    tell("preparing the build's own environment", None)
    make_environment(shop)
    tell(f"fetching {SDIST}", None)
    source = unpack(fetch(shop), shop.folder / "source")
    for patch in shop.plan.patches:
        tell(f"patching: {patch.title}", None)
    apply_all(shop.plan.patches, source)
    if shop.plan.nccl:
        offer_nccl(Path(shop.plan.nccl), shop.folder / "nccl")
    return compile_wheel(shop, source, tell)


def make_environment(shop: Workshop) -> None:
    """A venv of the same Python, with the build's packages before the target's."""
    target = shop.plan.target
    if run_logged(
        [target.python, "-m", "venv", str(shop.folder / "env")], shop.log, target.environ()
    ):
        raise build_failed(shop.log, "The build's environment could not be made.")
    version = ".".join(target.about["version"].split(".")[:2])
    packages = shop.folder / "env" / "lib" / f"python{version}" / "site-packages"
    lines = [f"import site; site.addsitedir({path!r})" for path in target.about["site"]]
    needed = list(BUILD_PACKAGES) + ([] if target.program("cmake") else ["cmake"])
    if shop.run(shop.python, "-m", "pip", "install", *needed):
        raise download_failed(shop.log, "The build's packages", " ".join(needed))
    (packages / "target.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")


def fetch(shop: Workshop) -> Path:
    """The source archive: out of the cache, else by pip into the cache."""
    kept = wheels_folder() / SDIST
    if not kept.exists():
        words = ["--no-deps", "--no-binary", ":all:", "--no-build-isolation", f"horovod=={VERSION}"]
        if shop.run(shop.python, "-m", "pip", "download", *words, "-d", str(shop.folder)):
            raise download_failed(
                shop.log, SDIST, f"--no-deps --no-binary :all: horovod=={VERSION}"
            )
        keep(shop.folder / SDIST, kept)
    if hashlib.sha256(kept.read_bytes()).hexdigest() != SHA256:
        raise MissingDependencyError(
            f"{kept} is not Horovod's own archive: its SHA-256 is another one.\nRemove it: rm {kept}"
        )
    return kept


def unpack(archive: Path, folder: Path) -> Path:
    """The archive's one folder."""
    with tarfile.open(archive) as file:
        if sys.version_info >= (3, 12) or hasattr(tarfile, "data_filter"):
            file.extractall(folder, filter="data")
        else:
            file.extractall(folder)  # its hash was checked
    return folder / SDIST.removesuffix(".tar.gz")


def offer_nccl(home: Path, folder: Path) -> None:
    """NCCL as the build looks for it: pip's package has no plain ``libnccl.so``."""
    (folder / "lib").mkdir(parents=True)
    (folder / "include").symlink_to(home / "include")
    library = next(iter(sorted((home / "lib").glob("**/libnccl.so*"))), home / "lib" / "libnccl.so")
    (folder / "lib" / "libnccl.so").symlink_to(library)


def compile_wheel(shop: Workshop, source: Path, tell: Tell) -> Path:
    """Configure, compile, pack."""
    last = -1

    def hear(line: str) -> None:
        nonlocal last
        if match := _PERCENT.match(line):
            if int(match[1]) > last:
                last = int(match[1])
                tell("compiling", last)
        elif line.startswith("running build_ext"):
            tell("configuring", None)
        elif line.startswith("running install_lib"):
            tell("packing the wheel", None)

    words = [shop.python, "setup.py", "bdist_wheel", "--dist-dir", str(shop.folder / "dist")]
    code = shop.run(*words, cwd=source, on_line=hear)
    wheels = sorted((shop.folder / "dist").glob("horovod-*.whl"))
    if code or not wheels:
        raise build_failed(shop.log, "Horovod could not be built.")
    return wheels[0]
