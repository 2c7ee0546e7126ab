"""The progress of a training: step, speed, remaining time, and whether it is stalled."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median

from allranks.cluster.slurm.job_states import JobState
from allranks.core.json_numbers import unix_seconds, whole_number
from allranks.observe.view.metric_columns import MetricTables
from allranks.observe.view.model import TrainingProgress
from allranks.observe.view.run_source import AttemptSource, RunSource
from allranks.runs.atomic_files import integer, read_json
from allranks.runs.attempt import Attempt
from allranks.runs.metrics_file import last_metrics
from allranks.runs.progress_file import AttemptProgress
from allranks.runs.run_records import environment, plan_time
from allranks.schedulers import scheduler_of
from allranks.schedulers.run_state import RunStatus

_RECENT = 20
"""Number of windows over which the speed is measured."""
_WAITING = (JobState.PENDING, JobState.REQUEUED)
_STILL = (*_WAITING, JobState.SUSPENDED)
"""States in which no step is expected."""
_MISSED, _SILENT = 10, 60.0
"""A training is stalled when it missed this many of its lines, and for at least this many seconds."""

_Line = tuple[float, int]


def training_progress(source: RunSource, status: RunStatus, now: float) -> TrainingProgress:
    """Return the progress, with the deadline and the checkpoints from the run folder."""
    last = source.last
    found = read_pace(source, last.attempt if last else None, status.state, now)
    waits = status.state.ended or status.state in _WAITING
    deadline = None if waits else _deadline(source, last, status)
    if status.state is JobState.UNKNOWN and deadline is not None and now > deadline:
        found = replace(
            found, eta_seconds=None, stalled_seconds=None
        )  # it cannot be running any more
    return replace(
        found,
        epochs=integer(read_json(source.folder / "training.json").get("epochs")),
        saved_step=_saved(source, last.attempt.progress if last else None),
        deadline=deadline,
    )


def read_pace(
    tables: MetricTables, attempt: Attempt | None, state: JobState, now: float
) -> TrainingProgress:
    """Return position and speed from what rank 0 wrote last: progress.json or the newest metrics.

    A few of the last lines of each table are enough.
    """
    written = attempt.progress if attempt else None
    step, epoch = _position(tables, written)
    total = written.total_steps if written else None
    left = None if step is None or total is None else max(total - step, 0)
    over = state.ended or left == 0 or (written is not None and written.outcome != "running")
    lines = _recent_lines(tables, attempt, written)
    stalled = None if over or state in _STILL else _stalled(tables, lines, now)
    speed = None if over or stalled else _speed(lines, written)
    return TrainingProgress(
        step=step,
        total_steps=total,
        epoch=epoch,
        eta_seconds=left / speed if left and speed else None,
        last_step_time=tables.train.last("time"),
        stalled_seconds=stalled,
    )


def pace_of_folder(folder: Path, attempt: Attempt, state: JobState) -> TrainingProgress:
    """Return the progress from the end of the metrics file alone, for views of hundreds of runs."""
    tables = MetricTables()
    tables.add(last_metrics(folder))
    return read_pace(tables, attempt, state, time.time())


def _position(
    tables: MetricTables, written: AttemptProgress | None
) -> tuple[int | None, int | None]:
    """Return the step and the epoch."""
    newest = max(
        (columns for columns in (tables.train, tables.epoch, tables.val) if len(columns)),
        key=lambda columns: columns.last("time") or 0.0,
        default=tables.train,
    )
    step, epoch = whole_number(newest.last("step")), whole_number(newest.last("epoch"))
    updated = newest.last("time") or 0.0
    if written is not None and (step is None or (written.updated or 0.0) > updated):
        step = written.step
    return step, epoch


def _recent_lines(
    tables: MetricTables, attempt: Attempt | None, written: AttemptProgress | None
) -> list[_Line]:
    """Return (time, step) of the last windows of this attempt."""
    began = (written.began if written else None) or unix_seconds(attempt.start if attempt else None)
    times, steps = (tables.train.part(name, -_RECENT) for name in ("time", "step"))
    return [
        (at, step)
        for at, step in zip(times, steps, strict=True)
        if at is not None and step is not None and at >= (began or 0)
    ]


def _stalled(tables: MetricTables, lines: list[_Line], now: float) -> float | None:
    """Return the seconds since the last sign of the training, if much longer than usual."""
    gaps = [after - before for (before, _), (after, _) in pairwise(lines)]
    if not gaps:
        return None
    silent = now - max(each.last("time") or 0.0 for each in tables.tables())
    return silent if silent > max(_MISSED * median(gaps), _SILENT) else None


def _speed(lines: list[_Line], written: AttemptProgress | None) -> float | None:
    """Return steps per second over the last windows of this attempt, else over all of it."""
    if len(lines) > 1:
        (first, a), (final, b) = lines[0], lines[-1]
        if final > first and b > a:
            return float((b - a) / (final - first))
    if written and written.began and written.updated and written.updated > written.began:
        return (written.step - written.first_step) / (written.updated - written.began) or None
    return None


def _saved(source: RunSource, written: AttemptProgress | None) -> int | None:
    """Return the newest checkpoint of this training, also of an earlier attempt."""
    fit = written.fit if written else 1
    found = [each.attempt.progress for each in source.attempts.values()]
    steps = [each.saved_step for each in found if each and each.fit == fit and each.saved_step]
    return max(steps, default=None)


def _deadline(source: RunSource, last: AttemptSource | None, status: RunStatus) -> float | None:
    """Return the deadline given to the ranks, else the start plus the requested time limit."""
    if last is None:
        return None
    try:
        return float(environment(last.path)["ALLRANKS_DEADLINE"])
    except (KeyError, ValueError):
        pass  # there was no limit at its start, or it was not recorded
    start = unix_seconds(status.start) or unix_seconds(last.attempt.start)
    plan = read_json(source.run.path / "plan.json")
    limit = plan_time(plan) if scheduler_of(status.run).limits_time else None
    return start + limit if start and limit else None
