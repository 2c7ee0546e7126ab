"""Slurm's words for a job's state → a small enum."""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """Where a job stands. The logic reads these, never Slurm's own words."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETING = "completing"
    SUSPENDED = "suspended"
    REQUEUED = "requeued"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    """It saved, left on purpose and may go on; Slurm itself calls that failed."""
    TIMEOUT = "timeout"
    PREEMPTED = "preempted"
    NODE_FAIL = "node failed"
    OUT_OF_MEMORY = "out of memory"
    UNKNOWN = "unknown"

    @property
    def ended(self) -> bool:
        """No further life is to come. Unknown is not ended: nobody can say."""
        return self in _ENDED

    @property
    def active(self) -> bool:
        """It holds nodes now."""
        return self in (State.RUNNING, State.COMPLETING, State.SUSPENDED)


_ENDED = frozenset(
    {
        State.COMPLETED,
        State.FAILED,
        State.CANCELLED,
        State.INTERRUPTED,
        State.TIMEOUT,
        State.PREEMPTED,
        State.NODE_FAIL,
        State.OUT_OF_MEMORY,
    }
)

WORDS = {
    "PENDING": State.PENDING,
    "CONFIGURING": State.PENDING,
    "POWER_UP_NODE": State.PENDING,
    "REQUEUE_FED": State.PENDING,
    "REQUEUE_HOLD": State.PENDING,
    "RESV_DEL_HOLD": State.PENDING,
    "SPECIAL_EXIT": State.PENDING,
    "EXPEDITING": State.PENDING,
    "RUNNING": State.RUNNING,
    "RESIZING": State.RUNNING,
    "SIGNALING": State.RUNNING,
    "COMPLETING": State.COMPLETING,
    "STAGE_OUT": State.COMPLETING,
    "UPDATE_DB": State.COMPLETING,
    "SUSPENDED": State.SUSPENDED,
    "STOPPED": State.SUSPENDED,
    "REQUEUED": State.REQUEUED,
    "COMPLETED": State.COMPLETED,
    "FAILED": State.FAILED,
    "BOOT_FAIL": State.FAILED,
    "LAUNCH_FAILED": State.FAILED,
    "RECONFIG_FAIL": State.FAILED,
    "CANCELLED": State.CANCELLED,
    "REVOKED": State.CANCELLED,
    "TIMEOUT": State.TIMEOUT,
    "DEADLINE": State.TIMEOUT,
    "PREEMPTED": State.PREEMPTED,
    "NODE_FAIL": State.NODE_FAIL,
    "OUT_OF_MEMORY": State.OUT_OF_MEMORY,
}

SUMMARY = (
    State.RUNNING,
    State.COMPLETING,
    State.SUSPENDED,
    State.PENDING,
    State.REQUEUED,
    State.NODE_FAIL,
    State.OUT_OF_MEMORY,
    State.FAILED,
    State.TIMEOUT,
    State.PREEMPTED,
    State.CANCELLED,
    State.UNKNOWN,
    State.COMPLETED,
)
"""Which state of many tasks stands for the whole: the first that any task is in."""


def read_state(word: str) -> State:
    """``RUNNING``; also sacct's ``CANCELLED by 1000`` and its cut ``CANCELLED+``."""
    first = (word.split() or [""])[0].rstrip("+").upper()
    return WORDS.get(first, State.UNKNOWN)
