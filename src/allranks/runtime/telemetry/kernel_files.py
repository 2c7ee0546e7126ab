"""Files of the kernel that may not be there: another version, another driver, another machine."""

from __future__ import annotations

from pathlib import Path


def read_text(path: Path) -> str:
    """What it holds, without the end of the line; empty when it cannot be read."""
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def read_number(path: Path) -> int | None:
    """None when it cannot be read, or holds something else, such as the word ``max``."""
    try:
        return int(read_text(path))
    except ValueError:
        return None
