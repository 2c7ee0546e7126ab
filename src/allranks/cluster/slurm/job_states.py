"""The table of Slurm's job states: every base state and state flag of Slurm 22.05 to 26.05.

Commands and the agent on a compute node both read it, so it imports nothing but ``enum``.
"""

from __future__ import annotations

from enum import Enum


class JobState(Enum):
    """The state of a job. Decisions are made on these, never on Slurm's own words."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETING = "completing"
    SUSPENDED = "suspended"
    REQUEUED = "requeued"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    """It saved a checkpoint, exited on purpose and can be resumed; Slurm calls that FAILED."""
    TIMEOUT = "timeout"
    PREEMPTED = "preempted"
    NODE_FAIL = "node failed"
    OUT_OF_MEMORY = "out of memory"
    UNKNOWN = "unknown"

    @property
    def ended(self) -> bool:
        """Whether no further attempt follows. An unknown state has not ended, as far as is known."""
        return self in _EXITED or self.terminated

    @property
    def active(self) -> bool:
        """Whether it holds nodes now."""
        return self in (JobState.RUNNING, JobState.COMPLETING, JobState.SUSPENDED)

    @property
    def waiting(self) -> bool:
        """Whether it is in the queue."""
        return self in (JobState.PENDING, JobState.REQUEUED)

    @property
    def terminated(self) -> bool:
        """Whether something outside the job ended it: a user, a limit, another job or a node."""
        return self in _TERMINATED

    @property
    def outcome(self) -> str:
        """The outcome of an attempt in this state, as ``end.json`` has it; empty before the end."""
        return next(
            (word for word, state in OUTCOMES.items() if state is self),
            "failed" if self.ended else "",
        )


_EXITED = frozenset(
    {JobState.COMPLETED, JobState.FAILED, JobState.OUT_OF_MEMORY, JobState.INTERRUPTED}
)
_TERMINATED = frozenset(
    {JobState.CANCELLED, JobState.TIMEOUT, JobState.PREEMPTED, JobState.NODE_FAIL}
)

OUTCOMES = {
    "finished": JobState.COMPLETED,
    "interrupted": JobState.INTERRUPTED,
    "cancelled": JobState.CANCELLED,
    "timed out": JobState.TIMEOUT,
    "preempted": JobState.PREEMPTED,
    "node lost": JobState.NODE_FAIL,
}
"""The state that an attempt's outcome stands for; any other outcome is a failure."""

SLURM_STATES = {
    # Waiting in the queue; held jobs too, whether or not Slurm requeued them.
    "PENDING": JobState.PENDING,
    "CONFIGURING": JobState.PENDING,
    "POWER_UP_NODE": JobState.PENDING,
    "EXPEDITING": JobState.PENDING,
    "REQUEUE_FED": JobState.PENDING,
    "REQUEUE_HOLD": JobState.PENDING,
    "RESV_DEL_HOLD": JobState.PENDING,
    "SPECIAL_EXIT": JobState.PENDING,
    # Between two attempts: Slurm put the job back, and its processes may not have ended yet.
    "REQUEUED": JobState.REQUEUED,
    # Holding nodes.
    "RUNNING": JobState.RUNNING,
    "RESIZING": JobState.RUNNING,
    "SIGNALING": JobState.RUNNING,
    "SUSPENDED": JobState.SUSPENDED,
    "STOPPED": JobState.SUSPENDED,
    "COMPLETING": JobState.COMPLETING,
    "STAGE_OUT": JobState.COMPLETING,
    "UPDATE_DB": JobState.COMPLETING,
    # Ended by the job itself.
    "COMPLETED": JobState.COMPLETED,
    "FAILED": JobState.FAILED,
    "OUT_OF_MEMORY": JobState.OUT_OF_MEMORY,
    # Ended by a user or an administrator; REVOKED: another cluster of the federation runs it.
    "CANCELLED": JobState.CANCELLED,
    "REVOKED": JobState.CANCELLED,
    # Ended by a limit, or for another job.
    "TIMEOUT": JobState.TIMEOUT,
    "DEADLINE": JobState.TIMEOUT,
    "PREEMPTED": JobState.PREEMPTED,
    # The fault of a node: it failed, did not boot, or could not be set up for the job.
    "NODE_FAIL": JobState.NODE_FAIL,
    "BOOT_FAIL": JobState.NODE_FAIL,
    "LAUNCH_FAILED": JobState.NODE_FAIL,
    "RECONFIG_FAIL": JobState.NODE_FAIL,
}

PRECEDENCE = (
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


def parse_state(text: str) -> JobState:
    """Return the state in ``RUNNING``, sacct's ``CANCELLED by 1000`` or its cut ``CANCELLED+``."""
    first = (text.split() or [""])[0].rstrip("+").upper()
    return SLURM_STATES.get(first, JobState.UNKNOWN)


def parse_states(text: str) -> list[JobState]:
    """Return the base state and the flags in scontrol's ``TIMEOUT,COMPLETING``."""
    return [parse_state(word) for word in text.split(",")]
