"""What a node does while ranks train: GPUs, CPUs, memory, network and disk. Standard library only."""

from __future__ import annotations

from pathlib import Path

SAMPLED = "ALLRANKS_SAMPLED"
"""Set for ranks whose agent samples the node, so that they need not."""


def is_switched_off(text: str) -> bool:
    """Whether a variable such as ALLRANKS_SAMPLE has the value off, 0, no or false."""
    return text.strip().lower() in ("off", "0", "no", "false")


def read_text(path: Path) -> str:
    """Return the text of a kernel file, empty when it cannot be read: drivers and versions differ."""
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def read_number(path: Path) -> int | None:
    """Return the number in a kernel file; None when it cannot be read or holds a word such as ``max``."""
    try:
        return int(read_text(path))
    except ValueError:
        return None
