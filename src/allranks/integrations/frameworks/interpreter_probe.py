"""Reports the packages of a Python interpreter, which runs the text of this file.

Standard library only, and no framework is imported: versions come from the packages' metadata, torch's
abilities from its version file and the names in its library. Prints one line of JSON after ``MARK``.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import json
import mmap
import sys
import sysconfig
from pathlib import Path
from typing import Any

MARK = "allranks-probe:"

TENSORFLOWS = ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tensorflow-rocm", "tf-nightly")
PACKAGES = (
    "torch", "deepspeed", "accelerate", "transformers", "horovod", "keras", "tf_keras", "mpi4py",
    "pip", "setuptools", "cloudpickle", "psutil", "pyyaml", "packaging", "cffi",
)  # fmt: skip


def version_of(name: str) -> str | None:
    """Return the installed version of a distribution."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def folder_of(package: str) -> Path | None:
    """Return the folder of a package, without importing it."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin).parent if spec and spec.origin else None


def torch_facts() -> dict[str, Any] | None:
    """Return torch's version, CUDA, ROCm and the collectives that were built in."""
    folder = folder_of("torch")
    if folder is None:
        return None
    named = read_assignments(folder / "version.py")
    text = map_file(folder / "lib" / "libtorch_python.so")
    groups = {"gloo": b"c10d16ProcessGroupGloo", "nccl": b"c10d16ProcessGroupNCCL",
              "mpi": b"c10d15ProcessGroupMPI"}  # fmt: skip
    built = {name: text is not None and text.find(symbol) >= 0 for name, symbol in groups.items()}
    version = named.get("__version__") or version_of("torch")
    return {"version": version, "cuda": named.get("cuda"), "rocm": named.get("hip"), **built}


def read_assignments(path: Path) -> dict[str, Any]:
    """Return the constants that a small Python file assigns."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError):
        return {}
    values = {}
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant):
            values[target.id] = value.value
    return values


def map_file(path: Path) -> mmap.mmap | None:
    """Map a file to search in, without reading all of it at once."""
    try:
        with open(path, "rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError):
        return None


def horovod_facts() -> dict[str, Any] | None:
    """Return the frameworks that Horovod was built for, with their versions then."""
    folder = folder_of("horovod")
    if folder is None:
        return None
    try:
        built = json.loads((folder / "metadata.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        built = {}
    parts = {"torch": built.get("pytorch"), "tensorflow": built.get("tensorflow")}
    return {"version": version_of("horovod"), **parts}


def nccl_folder() -> str | None:
    """Return the folder of NCCL's headers and library as pip installs them beside torch."""
    for place in sys.path:
        folder = Path(place, "nvidia", "nccl")
        if (folder / "include" / "nccl.h").exists():
            return str(folder)
    return None


def is_managed() -> bool:
    """Whether the distribution forbids pip here (PEP 668); a venv is free."""
    if sys.prefix != sys.base_prefix:
        return False
    return Path(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED").exists()


def python_facts() -> dict[str, Any]:
    """Return facts about the interpreter itself."""
    include = sysconfig.get_path("include")
    return {
        "executable": sys.executable,
        "version": ".".join(map(str, sys.version_info[:3])),
        "prefix": sys.prefix,
        "tag": sys.implementation.cache_tag.replace("cpython-", "cp"),
        "platform": sysconfig.get_platform().replace("-", "_").replace(".", "_"),
        "site": [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))],
        "headers": Path(include, "Python.h").exists(),
        "include": include,
        "venv": importlib.util.find_spec("ensurepip") is not None,
        "managed": is_managed(),
    }


def main() -> None:
    """Print all facts as one line."""
    sys.path[:] = [
        path for path in sys.path if path
    ]  # not the user's folder, which may hold torch.py
    packages = {name: version_of(name) for name in PACKAGES}
    packages["tensorflow"] = next(filter(None, map(version_of, TENSORFLOWS)), None)
    facts = {
        "python": python_facts(),
        "packages": packages,
        "torch": torch_facts(),
        "horovod": horovod_facts(),
        "nccl": nccl_folder(),
    }
    print(MARK + json.dumps(facts))


if __name__ == "__main__":
    main()
