"""What one point achieved: its speed, what a step's time went to, and how well that is known."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

METRICS, METRIC, WALL_TIME = "metrics.jsonl", "--metric", "wall time"
"""By what a point is measured."""
WARM_UP = 0.2
"""The share of the windows that is left out at the beginning: start, compilation and caches belong to no
step that follows. At least one is."""
_T = TypeVar("_T")


@dataclass(frozen=True)
class Achieved:
    """One point, once."""

    rate: float
    """Units a second over all ranks."""
    unit: str
    """samples, tokens, steps, runs, or units where nobody says what the metric counts."""
    source: str
    """metrics.jsonl, --metric or wall time."""
    step_seconds: float | None = None
    batch: float | None = None
    """Samples of a step over all ranks."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """Seconds of a step by phase."""
    waiting: float | None = None
    """Seconds of a step by which the slowest rank's own work is longer than the median rank's."""
    gpu_use: float | None = None
    mfu: float | None = None
    windows: int = 1
    """How many were measured."""
    seconds: float | None = None
    """How long that took; None where nobody tells."""
    uncertainty: float = 0.0
    """The error of the rate, as a share of it: by how the windows differ, or by a coarse clock."""

    @property
    def timed(self) -> bool:
        """Whether a time is all that is known: how much work was done in it, others must say."""
        return self.source == WALL_TIME or (self.source == METRIC and self.step_seconds is not None)


def settled(values: Sequence[_T]) -> Sequence[_T]:
    """Without the warm-up; one alone is all there is."""
    return values[max(1, math.ceil(len(values) * WARM_UP)) :] or values[-1:]


def standard_error(values: Sequence[float]) -> float:
    """Of the mean of these values, as a share of it; 0 of one alone, which tells nothing about it."""
    if len(values) < 2:
        return 0.0
    return statistics.stdev(values) / math.sqrt(len(values)) / statistics.fmean(values)
