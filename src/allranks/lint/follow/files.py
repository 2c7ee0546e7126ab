"""The scripts that a script names, read where they are there to read."""

from __future__ import annotations

from pathlib import Path

from allranks.lint.follow.trace import Reader
from allranks.lint.source import Source


def file_reader(folder: Path | None) -> Reader:
    """Reads the scripts that a script names: beside it, or in the folder we are in."""
    known: dict[Path, Source | None] = {}

    def read(name: str, asking: Source) -> Source | None:
        beside = asking.path.parent if asking.path is not None else folder
        for base in dict.fromkeys((beside, folder)):
            if base is None:
                continue
            path = base / _expanded(name)
            if path not in known:
                known[path] = _load(path)
            if known[path] is not None:
                return known[path]
        return None

    return read


def _expanded(name: str) -> Path:
    try:
        return Path(name).expanduser()
    except RuntimeError:  # ~somebody who has no account here
        return Path(name)


def _load(path: Path) -> Source | None:
    try:
        if not path.is_file() or path.stat().st_size > 1 << 20:
            return None
        text = path.read_text("utf-8", "replace")
    except (OSError, ValueError):
        return None
    return None if "\0" in text[:4096] else Source(str(path), text, path)
