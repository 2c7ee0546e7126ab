"""The attempts of a run as a history: steps, checkpoints, and time that made progress."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from allranks.runs.attempt import Attempt, attempt_numbers
from allranks.runs.progress_file import AttemptProgress

NOT_STARTED = ("moved away", "stopped")
"""Outcomes of attempts that ended before any rank started."""

_BEGINNING = (1, 0)
"""Fit and step before any checkpoint."""
_OPEN = {True: "running", False: "killed", None: "unknown"}
"""The outcome of an attempt without a recorded end, by whether it runs."""


@dataclass(frozen=True)
class AttemptSummary:
    """One attempt in the history of a run."""

    attempt: Attempt
    outcome: str
    """Its outcome; ``running``, ``killed`` or ``unknown`` where no end was recorded."""
    first_step: int | None
    last_step: int | None
    kept_step: int | None
    """The step of its newest checkpoint."""
    seconds: float
    """Time for which it held its nodes."""
    useful: float
    """Seconds of it that made progress: its first step to the last that the next attempt resumed from."""
    made_progress: bool
    """Whether it saved a newer checkpoint than all before it, as far as is known."""


@dataclass(frozen=True)
class Goodput:
    """Time that made progress over time allocated."""

    useful: float
    allocated: float

    @property
    def share(self) -> float | None:
        """Goodput from 0 to 1; None when nothing was allocated."""
        return self.useful / self.allocated if self.allocated > 0 else None


def attempts_of(run: Path, task: str | None = None) -> list[Attempt]:
    """Return the attempts of a run, or of one task of its array, in order."""
    folder = run / "attempts"
    found = [Attempt.open(folder / str(number)) for number in attempt_numbers(folder)]
    return [each for each in found if task is None or each.array_task == task]


def task_history(attempts: Sequence[Attempt], running: bool | None = False) -> list[AttemptSummary]:
    """Summarize the attempts of one task.

    ``running``: whether the last one still runs; None when that is unknown.
    """
    entries: list[AttemptSummary] = []
    best: tuple[int, int] | None = None
    for place, attempt in enumerate(attempts):
        following = attempts[place + 1] if place + 1 < len(attempts) else None
        entry = _entry(attempt, following, best, running if following is None else False)
        entries.append(entry)
        if attempt.progress is not None:
            best = max(best or _BEGINNING, _reached(attempt.progress))
    return entries


def attempt_history(
    attempts: Sequence[Attempt], running: bool | None = False
) -> list[AttemptSummary]:
    """Summarize the attempts of all tasks of an array (or of the one job), in order of attempts."""
    tasks = dict.fromkeys(attempt.array_task for attempt in attempts)
    found = [
        entry
        for task in tasks
        for entry in task_history([one for one in attempts if one.array_task == task], running)
    ]
    return sorted(found, key=lambda entry: entry.attempt.number)


def attempts_without_progress(entries: Sequence[AttemptSummary]) -> int:
    """Count the last attempts in a row without a newer checkpoint, since a user last started the run."""
    count = 0
    for entry in reversed([one for one in entries if one.outcome not in NOT_STARTED]):
        if entry.made_progress or entry.attempt.next in ("done", "stop"):
            break
        count += 1
    return count


def goodput(entries: Iterable[AttemptSummary]) -> Goodput:
    """Return the goodput over all attempts."""
    entries = list(entries)
    return Goodput(sum(one.useful for one in entries), sum(one.seconds for one in entries))


def _entry(
    attempt: Attempt, following: Attempt | None, best: tuple[int, int] | None, running: bool | None
) -> AttemptSummary:
    progress = attempt.progress
    outcome = attempt.outcome or _OPEN[running]
    return AttemptSummary(
        attempt=attempt,
        outcome=outcome,
        first_step=progress.first_step if progress else None,
        last_step=progress.step if progress else None,
        kept_step=progress.saved_step if progress else None,
        seconds=_seconds(attempt, progress, running),
        useful=_useful(progress, following, outcome),
        made_progress=_moved(attempt, progress, best),
    )


def _reached(progress: AttemptProgress) -> tuple[int, int]:
    """Return the fit and its newest checkpoint: a script may train several times, each from step 0."""
    return progress.fit, progress.saved_step or 0


def _moved(
    attempt: Attempt, progress: AttemptProgress | None, best: tuple[int, int] | None
) -> bool:
    """Return whether an attempt made progress; without a progress file, whether it exited on purpose."""
    if progress is None:
        return bool(attempt.interrupted) or attempt.outcome == "finished"
    fit, step = best or _BEGINNING
    if progress.fit > fit:
        return True  # it completed the previous fit
    before = max((progress.fit, progress.first_step), (fit, step))
    return _reached(progress) > before


def _seconds(attempt: Attempt, progress: AttemptProgress | None, running: bool | None) -> float:
    if attempt.start is None:
        return 0.0
    if attempt.end is not None:
        end = attempt.end.timestamp()
    elif running:
        end = time.time()
    else:  # killed: until it last wrote anything
        end = (progress.updated if progress else None) or 0.0
    return max(end - attempt.start.timestamp(), 0.0)


def _useful(progress: AttemptProgress | None, following: Attempt | None, outcome: str) -> float:
    """Return the time from its first to its last step, times the share of steps that were kept."""
    if progress is None or progress.began is None or progress.updated is None:
        return 0.0
    after = following.progress if following else None
    if after is not None and after.fit == progress.fit:
        built_on = after.first_step
    elif outcome in ("finished", "running") or (after is not None and after.fit > progress.fit):
        built_on = progress.step
    else:
        built_on = progress.saved_step or progress.first_step
    steps = progress.step - progress.first_step
    if steps <= 0:
        return 0.0
    share = min(max(built_on - progress.first_step, 0) / steps, 1.0)
    return share * max(progress.updated - progress.began, 0.0)
