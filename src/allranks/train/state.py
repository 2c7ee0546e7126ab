"""Where a training stands: read by the progress bar, callbacks and checkpoints."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch


@dataclass
class State:
    """Counts that only the loop moves."""

    epoch: int = 0
    """The epoch under way, from 1; 0 before the first."""
    step: int = 0
    """Optimizer steps done."""
    batch: int = 0
    """Batches of this epoch done on each rank."""
    epochs: int | None = None
    total_steps: int | None = None
    values: dict[str, float] = field(default_factory=dict)
    """What the progress bar shows."""
    started: float = field(default_factory=time.perf_counter)
    closing: str = "done"
    """How far the epoch's end has come: "" in its batches, "written" (its metrics), "validated",
    "done", or "stopped" where the training ended before the epoch; "validating" where a validation
    between its batches was broken off."""
    phase: str = "train"
    device: torch.device | None = None
    samples_per_step: int = 0
    """Of all ranks, in a full step; 0 when unknown."""
    first_step: int = 0
    """Where this process began: not 0 after a resumption."""

    seen_before: int = 0
    """Samples that were seen before a resumption, perhaps in other batches."""
    seconds_before: float = 0.0
    """Seconds that this training took before a resumption."""

    @property
    def samples(self) -> int:
        """Samples that this training has seen, over all ranks."""
        return self.seen_before + (self.step - self.first_step) * self.samples_per_step

    @property
    def seconds(self) -> float:
        """How long this training has taken, in all processes that it went through."""
        return self.seconds_before + time.perf_counter() - self.started
