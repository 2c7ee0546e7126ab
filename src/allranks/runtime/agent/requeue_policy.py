"""The limits within which a run is resumed automatically."""

from __future__ import annotations

from typing import NamedTuple


class RequeuePolicy(NamedTuple):
    """The options ``--requeue --max-attempts N …`` of a job script."""

    requeue: bool = False
    """Whether another attempt may follow through the queue."""
    max_attempts: int = 100
    """Attempts of a run, restarts in place included."""
    max_no_progress: int = 3
    """Consecutive attempts without a newer checkpoint after which the run stops."""
    restarts: int = 0
    """How many times failed ranks are started again in the same allocation."""
