"""Slurm's words for a job's state → a small enum."""

from __future__ import annotations

from enum import Enum


class JobState(Enum):
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
        return self in (JobState.RUNNING, JobState.COMPLETING, JobState.SUSPENDED)


_ENDED = frozenset(
    {
        JobState.COMPLETED,
        JobState.FAILED,
        JobState.CANCELLED,
        JobState.INTERRUPTED,
        JobState.TIMEOUT,
        JobState.PREEMPTED,
        JobState.NODE_FAIL,
        JobState.OUT_OF_MEMORY,
    }
)

WORDS = {
    "PENDING": JobState.PENDING,
    "CONFIGURING": JobState.PENDING,
    "POWER_UP_NODE": JobState.PENDING,
    "REQUEUE_FED": JobState.PENDING,
    "REQUEUE_HOLD": JobState.PENDING,
    "RESV_DEL_HOLD": JobState.PENDING,
    "SPECIAL_EXIT": JobState.PENDING,
    "EXPEDITING": JobState.PENDING,
    "RUNNING": JobState.RUNNING,
    "RESIZING": JobState.RUNNING,
    "SIGNALING": JobState.RUNNING,
    "COMPLETING": JobState.COMPLETING,
    "STAGE_OUT": JobState.COMPLETING,
    "UPDATE_DB": JobState.COMPLETING,
    "SUSPENDED": JobState.SUSPENDED,
    "STOPPED": JobState.SUSPENDED,
    "REQUEUED": JobState.REQUEUED,
    "COMPLETED": JobState.COMPLETED,
    "FAILED": JobState.FAILED,
    "BOOT_FAIL": JobState.FAILED,
    "LAUNCH_FAILED": JobState.FAILED,
    "RECONFIG_FAIL": JobState.FAILED,
    "CANCELLED": JobState.CANCELLED,
    "REVOKED": JobState.CANCELLED,
    "TIMEOUT": JobState.TIMEOUT,
    "DEADLINE": JobState.TIMEOUT,
    "PREEMPTED": JobState.PREEMPTED,
    "NODE_FAIL": JobState.NODE_FAIL,
    "OUT_OF_MEMORY": JobState.OUT_OF_MEMORY,
}

SUMMARY = (
    JobState.RUNNING,
    JobState.COMPLETING,
    JobState.SUSPENDED,
    JobState.PENDING,
    JobState.REQUEUED,
    JobState.NODE_FAIL,
    JobState.OUT_OF_MEMORY,
    JobState.FAILED,
    JobState.TIMEOUT,
    JobState.PREEMPTED,
    JobState.CANCELLED,
    JobState.UNKNOWN,
    JobState.COMPLETED,
)
"""Which state of many tasks stands for the whole: the first that any task is in."""


def read_state(word: str) -> JobState:
    """``RUNNING``; also sacct's ``CANCELLED by 1000`` and its cut ``CANCELLED+``."""
    first = (word.split() or [""])[0].rstrip("+").upper()
    return WORDS.get(first, JobState.UNKNOWN)
