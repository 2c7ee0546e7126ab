"""A Python with packages that are not there: small files that the probe reads as it reads the real ones."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from allranks.integrations.frameworks import interpreter_probe as probe
from allranks.integrations.frameworks.python_environment import PythonEnvironment

EMPTY: dict[str, str | None] = dict.fromkeys((*probe.PACKAGES, "tensorflow"))
CPU_TORCH = {
    "version": "2.13.0+cpu", "cuda": None, "rocm": None, "gloo": True, "nccl": False, "mpi": False,
}  # fmt: skip


def target(python: str = sys.executable, **facts: object) -> PythonEnvironment:
    """A target with these facts, as if the probe had found them."""
    packages = {**EMPTY, "pip": "26.0", **facts.pop("packages", {})}  # type: ignore[dict-item]
    about = {
        "version": "3.11.7", "prefix": "/envs/train", "tag": "cp311", "platform": "linux_x86_64",
        "site": [], "headers": True, "include": "/usr/include/python3.11", "venv": True,
        "managed": False, **facts.pop("about", {}),  # type: ignore[dict-item]
    }  # fmt: skip
    rest = {"torch": None, "horovod": None, "nccl": None, **facts}
    return PythonEnvironment(python, {"python": about, "packages": packages, **rest})


def program(folder: Path, name: str, text: str) -> Path:
    """A shell script of that name."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def package(folder: Path, name: str, version: str) -> Path:
    """A package's folder and its metadata."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    place = folder / name
    place.mkdir()
    (place / "__init__.py").write_text("raise ImportError('this must not be imported')\n")
    return place


def torch_package(folder: Path, *groups: str, cuda: str | None = None) -> None:
    """torch as far as the probe looks at it."""
    place = package(folder, "torch", "2.13.0")
    (place / "version.py").write_text(
        f"from typing import Optional\n__version__ = '2.13.0+x'\ncuda: Optional[str] = {cuda!r}\n"
        "hip: Optional[str] = None\n"
    )
    (place / "lib").mkdir()
    names = b"\0".join(b"c10d" + group.encode() for group in groups)
    (place / "lib" / "libtorch_python.so").write_bytes(b"\x7fELF" + names)


def horovod_package(folder: Path, **built: str) -> None:
    """Horovod as far as the probe looks at it."""
    place = package(folder, "horovod", "0.28.1")
    (place / "metadata.json").write_text(json.dumps(built))


def python_with(folder: Path, packages: Path) -> str:
    """A Python that sees these packages before its own, and nothing of the user's PYTHONPATH."""
    text = f'PYTHONPATH="{packages}" exec {os.fspath(sys.executable)} "$@"'
    return str(program(folder / "bin", "python", text))
