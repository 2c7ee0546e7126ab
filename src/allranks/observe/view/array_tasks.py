"""The attempts of a run, of all tasks of its job array, and the status of one task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from allranks.cluster.slurm.job_states import OUTCOMES, JobState
from allranks.cluster.slurm.job_status import JobStatus
from allranks.cluster.slurm.pending_reasons import pending_reason_text
from allranks.runs.attempt import Attempt, attempt_numbers
from allranks.schedulers.run_state import RunStatus

_EXPLAINED_STATES = (JobState.PENDING, JobState.REQUEUED, JobState.UNKNOWN)
"""States for which a reason is reported: why it waits, why nothing is known."""


class RunAttempts:
    """Every attempt by its number; those that ended are read once."""

    def __init__(self, run: Path) -> None:
        self._folder = run / "attempts"
        self._known: dict[int, Attempt] = {}
        self._whole = JobState.UNKNOWN
        self._reported: dict[str, JobStatus] = {}

    def update_status(self, status: RunStatus) -> None:
        """Take over Slurm's states of the tasks: a task that was killed has not recorded its end."""
        self._whole, self._reported = status.state, _task_states(status)

    def refresh(self) -> None:
        """Read new attempts, and those that had not ended at the last refresh."""
        self._known = {number: self._read(number) for number in attempt_numbers(self._folder)}

    def _read(self, number: int) -> Attempt:
        known = self._known.get(number)
        if known is not None and known.outcome:
            return known
        return Attempt.open(self._folder / str(number))

    def numbers(self, task: str) -> list[int]:
        """Return the attempts of one task; of ``""`` those of a run without an array."""
        return [number for number, attempt in self._known.items() if attempt.array_task == task]

    def last(self) -> dict[str, Attempt]:
        """Return the last attempt of each task, in the order in which the tasks started."""
        return {
            attempt.array_task: attempt for attempt in self._known.values() if attempt.array_task
        }

    def running_tasks(self) -> list[str]:
        """Return the tasks that have started and not ended, the newest first."""
        begun = {
            attempt.number: task
            for task, attempt in self.last().items()
            if not attempt.outcome and not self._state(attempt).ended
        }
        return [begun[number] for number in sorted(begun, reverse=True)]

    def newest_task(self) -> str:
        """Return the task that started last, a running one before one that has ended."""
        last = self.last()
        latest = max(last, key=lambda task: last[task].number, default="")
        return next(iter(self.running_tasks()), latest)

    def ended_tasks(self) -> dict[str, JobState]:
        """Return the state of each task that has ended and will not continue."""
        states = {task: self._state(attempt) for task, attempt in self.last().items()}
        return {task: state for task, state in states.items() if state.ended}

    def failed_tasks(self) -> list[str]:
        """Return the ended tasks that did not complete."""
        ended = self.ended_tasks().items()
        return [task for task, state in ended if state is not JobState.COMPLETED]

    def _state(self, attempt: Attempt) -> JobState:
        return _state(attempt, self._reported.get(attempt.array_task), self._whole)


def task_status(status: RunStatus, task: str, attempts: Sequence[Attempt]) -> RunStatus:
    """Return the status of one task: by its own attempts, else by Slurm."""
    reported = _task_states(status).get(task)
    if not attempts:
        return _pending_status(status, reported)
    last = attempts[-1]
    ended = last.is_over
    state = _state(last, reported, status.state)
    return replace(
        status,
        state=state,
        exit_code=last.exit_code if ended else reported.exit_code if reported else None,
        nodes=",".join(last.hosts),
        start=last.start,
        end=last.end if ended else reported.end if reported else None,
        why=_why(last)
        if ended
        else _reason(status, reported)
        if state in _EXPLAINED_STATES
        else "",
        attempts=len(attempts),
    )


def _task_states(status: RunStatus) -> dict[str, JobStatus]:
    """Return Slurm's state of each task, in the last job that it was part of."""
    return {task.job_id.rpartition("_")[2]: task for task in status.tasks}


def _state(attempt: Attempt, reported: JobStatus | None, whole: JobState) -> JobState:
    """Return the state of a task: by the end of its last attempt, else by Slurm, or of the whole array."""
    if attempt.is_over:
        return OUTCOMES.get(attempt.outcome, JobState.FAILED)
    return reported.state if reported else whole


def _pending_status(status: RunStatus, reported: JobStatus | None) -> RunStatus:
    """Return the status of a task without an attempt: it waits, or ended before it could start."""
    state = (
        reported.state if reported else JobState.PENDING if status.state.active else status.state
    )
    return replace(
        status,
        state=state,
        exit_code=reported.exit_code if reported else None,
        nodes=reported.nodes if reported else "",
        start=reported.start if reported else None,
        end=reported.end if reported else None,
        expected_start=reported.expected_start if reported else None,
        why=_reason(status, reported) if state in _EXPLAINED_STATES else "",
        attempts=0,
    )


def _reason(status: RunStatus, reported: JobStatus | None) -> str:
    """Return why a task waits or is unknown; the array's reason only where its state is the same."""
    if reported is not None and reported.state is JobState.PENDING:
        return pending_reason_text(reported.reason).replace("JOBID", reported.job_id)
    return "" if status.state.active else status.why


def _why(last: Attempt) -> str:
    if last.outcome == "finished":
        return ""
    failure = last.first_failure()
    return f"rank {failure.rank} failed first" if failure else last.reason
