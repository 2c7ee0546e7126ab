"""How long a save takes: it decides how early a training leaves before the end of its job."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from allranks.runs.progress_file import AttemptProgress
from allranks.train.checkpoint.write_plan import CheckpointState
from allranks.train.folder import lost_attempt

_SLOW = 100e6
"""Bytes a second that any disk of a cluster takes."""
_GROWTH = 3
"""Most optimizers make two numbers more for each weight at their first step."""


@dataclass
class Pace:
    """Seconds of a save: of this attempt's, of those before it, or by its size."""

    measured: float = 0.0
    """The longest of this attempt."""
    before: float = 0.0
    """What earlier attempts took."""
    guessed: float = 0.0

    @property
    def longest(self) -> float:
        """What to reckon with."""
        return max(self.measured, self.before) or self.guessed

    def measure(self, seconds: float) -> None:
        """A save of this attempt took so long."""
        self.measured = max(self.measured, seconds)

    def guess(self, snapshot: CheckpointState, size: int) -> None:
        """By the bytes of the tensors, as long as nothing was saved."""
        begun = any(key.startswith("optimizer.") for key in snapshot.tensors)
        self.guessed = snapshot.total_bytes(size) * (1 if begun else _GROWTH) / _SLOW

    def look_back(self, run: Path, loaded: float) -> None:
        """What the attempt before tells, and the checkpoint that was loaded took."""
        attempt = lost_attempt(run)
        known = None if attempt is None else AttemptProgress.read(attempt)
        told = known.save_seconds if known is not None else None
        self.before = max(loaded, told or 0.0)
