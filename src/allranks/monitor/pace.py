"""How far a training is, how fast it goes, and whether it comes to its end in time."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import median

from allranks.errors import UsageError
from allranks.monitor.model import Progress
from allranks.monitor.numbers import whole
from allranks.monitor.source import AttemptSource, Source
from allranks.runs.files import integer, read_bytes, read_json
from allranks.runs.progress import Progress as Written
from allranks.schedulers.status import RunStatus
from allranks.slurm.states import State
from allranks.units import parse_time

_RECENT = 20
"""The pace is that of so many windows."""
_WAITING = (State.PENDING, State.REQUEUED)
_STILL = (*_WAITING, State.SUSPENDED)
"""States in which nobody expects a step."""
_MISSED, _SILENT = 10, 60.0
"""A training has stopped moving when it missed so many of its lines, and for so many seconds."""

_Line = tuple[float, int]


def progress(source: Source, status: RunStatus, now: float) -> Progress:
    """From what rank 0 wrote down last: progress.json or the newest line of metrics, whichever is newer."""
    last = source.last
    written = last.attempt.progress if last else None
    step, epoch = _position(source, written)
    total = written.total_steps if written else None
    over = status.state.ended
    lines = _recent_lines(source, last, written)
    stalled = None if over or status.state in _STILL else _stalled(source, lines, now)
    pace = None if over or stalled else _pace(lines, written)
    left = None if step is None or total is None else max(total - step, 0)
    return Progress(
        step=step,
        total_steps=total,
        epoch=epoch,
        epochs=integer(read_json(source.folder / "training.json").get("epochs")),
        eta_seconds=left / pace if left is not None and pace else None,
        saved_step=_saved(source, written),
        deadline=None if over or status.state in _WAITING else _deadline(source, last, status),
        last_step_time=source.train.last("time"),
        stalled_seconds=stalled,
    )


def _position(source: Source, written: Written | None) -> tuple[int | None, int | None]:
    """The step and the epoch."""
    train, epochs = source.train, source.epoch
    newest = max(
        (columns for columns in (train, epochs, source.val) if len(columns)),
        key=lambda columns: columns.last("time") or 0.0,
        default=train,
    )
    step, epoch = whole(newest.last("step")), whole(newest.last("epoch"))
    told = newest.last("time") or 0.0
    if written is not None and (step is None or (written.updated or 0.0) > told):
        step = written.step
    return step, epoch


def _recent_lines(
    source: Source, last: AttemptSource | None, written: Written | None
) -> list[_Line]:
    """(time, step) of the last windows of this attempt."""
    began = (written.began if written else None) or _seconds(last.attempt.start if last else None)
    times, steps = (source.train.part(name, -_RECENT) for name in ("time", "step"))
    return [
        (time, step)
        for time, step in zip(times, steps, strict=True)
        if time is not None and step is not None and time >= (began or 0)
    ]


def _stalled(source: Source, lines: list[_Line], now: float) -> float | None:
    """Seconds since the last sign of the training, when that is much longer than usual."""
    gaps = [after - before for (before, _), (after, _) in pairwise(lines)]
    if not gaps:
        return None
    heard = max(each.last("time") or 0.0 for each in (source.train, source.val, source.epoch))
    silent = now - heard
    return silent if silent > max(_MISSED * median(gaps), _SILENT) else None


def _pace(lines: list[_Line], written: Written | None) -> float | None:
    """Steps a second over the last windows of this attempt; else over all that it tells."""
    if len(lines) > 1:
        (first, a), (final, b) = lines[0], lines[-1]
        if final > first and b > a:
            return float((b - a) / (final - first))
    if written and written.began and written.updated and written.updated > written.began:
        return (written.step - written.first_step) / (written.updated - written.began) or None
    return None


def _saved(source: Source, written: Written | None) -> int | None:
    """The newest checkpoint of this training, also one that an earlier attempt left."""
    fit = written.fit if written else 1
    found = [each.attempt.progress for each in source.attempts.values()]
    steps = [each.saved_step for each in found if each and each.fit == fit and each.saved_step]
    return max(steps, default=None)


def _deadline(source: Source, last: AttemptSource | None, status: RunStatus) -> float | None:
    """What the ranks were told, else the start and the time limit that was asked for."""
    if last is None:
        return None
    told = _variable(last.path / "environment.txt", "ALLRANKS_DEADLINE")
    if told is not None:
        return told
    start = _seconds(status.start) or _seconds(last.attempt.start)
    limit = _time_limit(source.run.path) if status.run.scheduler == "slurm" else None
    return start + limit if start and limit else None


def _variable(path: Path, name: str) -> float | None:
    try:
        lines = read_bytes(path).decode("utf-8", "replace").splitlines()
    except OSError:
        return None
    value = next((each.partition("=")[2] for each in lines if each.startswith(f"{name}=")), "")
    try:
        return float(value)
    except ValueError:
        return None


def _time_limit(run: Path) -> int | None:
    values = read_json(run / "plan.json").get("values")
    for each in values if isinstance(values, list) else ():
        if isinstance(each, dict) and each.get("name") == "time":
            try:
                return parse_time(str(each.get("value")))
            except UsageError:
                return None
    return None


def _seconds(moment: datetime | None) -> float | None:
    return moment.timestamp() if moment else None
