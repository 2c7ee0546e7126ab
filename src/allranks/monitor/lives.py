"""The attempts of a run, of all tasks of its array, and what they tell of one task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from allranks.runs.attempts import Attempt, attempt_numbers
from allranks.schedulers.status import RunStatus
from allranks.slurm.states import State

_ENDS = {
    "finished": State.COMPLETED,
    "interrupted": State.INTERRUPTED,
    "cancelled": State.CANCELLED,
    "timed out": State.TIMEOUT,
    "preempted": State.PREEMPTED,
    "node lost": State.NODE_FAIL,
}
"""The state of a task whose last attempt ended so; any other end is a failure."""


class Lives:
    """Every attempt by its number; those that ended are read once."""

    def __init__(self, run: Path) -> None:
        self._folder = run / "attempts"
        self._known: dict[int, Attempt] = {}

    def refresh(self) -> None:
        """Read what is new, and what had not ended at the last look."""
        self._known = {number: self._read(number) for number in attempt_numbers(self._folder)}

    def _read(self, number: int) -> Attempt:
        known = self._known.get(number)
        if known is not None and known.outcome:
            return known
        return Attempt.open(self._folder / str(number))

    def numbers(self, task: str) -> list[int]:
        """The attempts of one task; of ``""`` those of a run that is no array."""
        return [number for number, life in self._known.items() if life.array_task == task]

    def last(self) -> dict[str, Attempt]:
        """The last attempt of each task, in the order in which the tasks began."""
        return {life.array_task: life for life in self._known.values() if life.array_task}

    def newest_task(self) -> str:
        """The task that began last, one that still runs before one that has ended."""
        last = self.last()
        running = [task for task, life in last.items() if not life.outcome]
        return max(running or last, key=lambda task: last[task].number, default="")

    def failed_tasks(self) -> list[str]:
        """The tasks that ended otherwise than well, and do not go on."""
        return [
            task
            for task, life in self.last().items()
            if life.outcome not in ("", "finished") and not life.followed
        ]


def task_status(status: RunStatus, lives: Sequence[Attempt]) -> RunStatus:
    """The status of a job array as that of one task, as far as the task's own attempts tell it."""
    if not lives:
        state = State.PENDING if status.state.active else status.state
        return replace(status, state=state, nodes="", start=None, end=None, attempts=0)
    last = lives[-1]
    ended = bool(last.outcome) and not last.followed
    state = _ENDS.get(last.outcome, State.FAILED) if ended else status.state
    waits = state in (State.PENDING, State.REQUEUED)
    return replace(
        status,
        state=state,
        exit_code=last.exit_code if ended else None,
        nodes=",".join(last.hosts),
        start=last.start,
        end=last.end if ended else None,
        why=_why(last) if ended else status.why if waits else "",
        attempts=len(lives),
    )


def _why(last: Attempt) -> str:
    if last.outcome == "finished":
        return ""
    failure = last.first_failure()
    return f"rank {failure.rank} failed first" if failure else last.reason
