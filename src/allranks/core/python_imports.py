"""Find what a Python script imports, by `ast`, without running it.

Used to tell the framework (which extra variables a rank needs) and what the agent may import once
before it forks the ranks. A script that cannot be parsed imports nothing: it will say so itself
when it runs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from allranks.errors import UsageError

_TORCH = frozenset(
    [
        "accelerate",
        "deepspeed",
        "diffusers",
        "fairscale",
        "fastai",
        "ignite",
        "lightning",
        "lightning_fabric",
        "monai",
        "peft",
        "perceptrain",
        "pytorch_lightning",
        "sentence_transformers",
        "timm",
        "torch",
        "torchaudio",
        "torchdata",
        "torchmetrics",
        "torchtext",
        "torchtune",
        "torchvision",
        "torch_geometric",
        "transformers",
        "trl",
    ]
)
# Names of allranks that need torch themselves.
_OUR_TORCH = frozenset({"Trainer", "init", "trainer", "train"})
# These start threads when they are imported, and a process with threads must not be forked.
_THREADS = frozenset({"jax", "flax", "tensorflow", "keras", "tf_keras", "ray", "grpc"})
_FILES = 64
_BYTES = 1 << 20


@dataclass(frozen=True)
class ImportScan:
    """The imports of a script."""

    modules: frozenset[str]
    """Dotted names as written: ``torch.distributed``, ``horovod.torch``."""
    framework: str | None
    """``torch``, ``tensorflow`` or ``horovod``: which variables the ranks need."""
    preload: tuple[str, ...]
    """What the agent may import before it forks the ranks."""
    files: tuple[Path, ...] = ()
    """The script and the local modules that were read."""


def scan(path: str | Path) -> ImportScan:
    """Return the imports of a script and of the modules beside it."""
    script = Path(path)
    if not script.exists():
        raise UsageError(f"There is no script {script}.")
    names, files = _collect(script)
    modules = frozenset(names)
    return ImportScan(modules, _framework(modules), _preload(modules), files)


def _collect(script: Path) -> tuple[set[str], tuple[Path, ...]]:
    """Collect the names imported by the script and by the local files it imports, each file once."""
    found: set[str] = set()
    files: list[Path] = []
    queue, seen = [script], {script.resolve()}
    while queue and len(seen) <= _FILES:
        path = queue.pop(0)
        files.append(path)
        names = set(_imports(path))
        found |= names
        for name in sorted(names):
            for local in _local(script.parent, path.parent, name):
                if local.resolve() not in seen:
                    seen.add(local.resolve())
                    queue.append(local)
    return found, tuple(files)


def _imports(path: Path) -> Iterator[str]:
    try:
        if path.stat().st_size > _BYTES:
            return
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return
    queue: list[ast.AST] = [tree]
    while queue:
        node = queue.pop()
        if isinstance(node, ast.If) and _for_type_checkers(node.test):
            queue.extend(node.orelse)
            continue
        yield from _names(node)
        queue.extend(ast.iter_child_nodes(node))


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        # Dots stay: they say that the module is a local one.
        base = "." * node.level + (node.module or "")
        yield base
        for alias in node.names:
            if alias.name != "*":
                yield f"{base}{'' if base.endswith('.') else '.'}{alias.name}"


def _for_type_checkers(test: ast.expr) -> bool:
    name = (
        test.id
        if isinstance(test, ast.Name)
        else test.attr
        if isinstance(test, ast.Attribute)
        else ""
    )
    return name == "TYPE_CHECKING"


def _local(root: Path, here: Path, name: str) -> Iterator[Path]:
    """Return the files that an import may name: beside the script; a relative one beside its module."""
    level = len(name) - len(name.lstrip("."))
    folder = root
    if level:
        folder = here
        for _ in range(level - 1):
            folder = folder.parent
    parts = [part for part in name.split(".") if part]
    for count in range(1, len(parts) + 1):
        place = folder.joinpath(*parts[:count])
        for path in (place.with_name(place.name + ".py"), place / "__init__.py"):
            if path.is_file():
                yield path


def _framework(modules: frozenset[str]) -> str | None:
    tops = {name.partition(".")[0] for name in modules}
    if "horovod" in tops:
        return "horovod"
    if tops & {"tensorflow", "keras", "tf_keras"}:
        return None if _is_torch(modules, tops) and "tensorflow" not in tops else "tensorflow"
    return "torch" if _is_torch(modules, tops) else None


def _preload(modules: frozenset[str]) -> tuple[str, ...]:
    tops = {name.partition(".")[0] for name in modules}
    if tops & _THREADS or "horovod.tensorflow" in modules:
        return ()
    return ("torch",) if _is_torch(modules, tops) or "horovod.torch" in modules else ()


def _is_torch(modules: frozenset[str], tops: set[str]) -> bool:
    return bool(tops & _TORCH) or any(f"allranks.{name}" in modules for name in _OUR_TORCH)
