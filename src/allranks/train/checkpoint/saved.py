"""One published checkpoint: its place among the others, and what its manifest says."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from allranks.train.checkpoint.manifest import BrokenCheckpoint, Manifest, NewerCheckpoint
from allranks.train.checkpoint.patience import Unreadable

_STEP = re.compile(r"step-(\d{8,})(?:-(\d+))?")


@dataclass(frozen=True)
class Saved:
    """One published checkpoint: its manifest, or what is wrong with it."""

    path: Path
    manifest: Manifest | None
    problem: str = ""
    newer: bool = False
    """Written by a later version of allranks: not broken, but not for this one."""
    unreadable: bool = False
    """The file system did not give it out: it may be sound."""

    @property
    def step(self) -> int:
        return place(self.path.name)[0]


def place(name: str) -> tuple[int, int]:
    """Step and copy of a folder's name: ``step-00000500-2`` is (500, 2)."""
    match = _STEP.fullmatch(name)
    return (int(match[1]), int(match[2] or 1)) if match else (-1, 0)


def saved_at(path: Path) -> Saved:
    """A step folder as it stands."""
    try:
        return Saved(path, Manifest.read(path))
    except BrokenCheckpoint as error:
        return Saved(path, None, str(error))
    except Unreadable as error:
        return Saved(path, None, str(error), unreadable=True)
    except NewerCheckpoint as error:
        return Saved(path, None, str(error), newer=True)
