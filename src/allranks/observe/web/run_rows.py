"""The rows of the list of runs: little enough to read that hundreds of runs can be shown at once.

A loss curve requires reading metrics.jsonl, so each request reads for a moment; the next one continues.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from allranks.cluster.slurm.job_states import JobState
from allranks.core.json_numbers import finite_number, unix_seconds
from allranks.observe.view.metric_columns import Curve
from allranks.observe.view.model import TrainingProgress
from allranks.observe.view.training_progress import pace_of_folder
from allranks.observe.web.request_cache import StatusCache
from allranks.runs.attempt import Attempt
from allranks.runs.attempt_history import attempt_history, goodput
from allranks.runs.metrics_file import MetricsFile
from allranks.runs.run_folder import Run
from allranks.schedulers.run_state import RunStatus

_PATIENCE = 0.3  # seconds of a request for reading curves
_POINTS = 48
_AXES = ("step", "train_loss", "fit")
_AT_ONCE = 5000  # lines between two looks at the clock
_DAMAGED = (OSError, ValueError, TypeError, ArithmeticError)
_PROGRESS_FIELDS = (
    "start",
    "elapsed",
    "attempts",
    "tasks",
    "goodput",
    "step",
    "total_steps",
    "eta",
)


class RunRows:
    """Rows of runs, cached until their files change."""

    def __init__(self, states: StatusCache) -> None:
        self._states = states
        self._curves: dict[Path, _LossCurve] = {}
        self._turn = 0
        self._ended: dict[Path, tuple[RunStatus, dict[str, Any]]] = {}
        self._lock = threading.Lock()

    def rows(self, runs: Sequence[tuple[str, Run]], *, curves: bool = True) -> list[dict[str, Any]]:
        """Return a row for each run, in their order, with its loss curve or without."""
        statuses = self._states.of([run for _, run in runs])
        with self._lock:
            if curves:
                self._read([run.path for _, run in runs], time.monotonic() + _PATIENCE)
            return [
                self._row(key, run, status) | (self._curves[run.path].record() if curves else {})
                for (key, run), status in zip(runs, statuses, strict=True)
            ]

    def _row(self, key: str, run: Run, status: RunStatus) -> dict[str, Any]:
        """Return the row of a run; once it has ended, read again only when its status was queried again."""
        before, row = self._ended.get(run.path, (None, {}))
        if before is not status or row["id"] != key:
            row = _row(key, run, status)
            self._ended |= {run.path: (status, row)} if status.state.ended else {}
        return row

    def _read(self, paths: Sequence[Path], until: float) -> None:
        """Read as many curves as there is time for; the next request continues."""
        self._curves = {path: self._curves.get(path) or _LossCurve(path) for path in paths}
        begin = self._turn % max(len(paths), 1)
        for path in [*paths[begin:], *paths[:begin]]:
            if time.monotonic() > until:
                break
            self._turn += self._curves[path].read(until)


class _LossCurve:
    """The loss curve of the current training: only what was added is read."""

    def __init__(self, folder: Path) -> None:
        self._file = MetricsFile(folder)
        self._curve, self._diverged = Curve(_POINTS), False

    def record(self) -> dict[str, Any]:
        """Return the losses read so far, thinned, and whether the newest is not finite."""
        return {"curve": [loss for _, loss in self._curve.points()], "diverged": self._diverged}

    def read(self, until: float) -> bool:
        """Read on until then; True when nothing is left."""
        if self._file.refresh():
            self._curve, self._diverged = Curve(_POINTS), False
        while self._file.unread and time.monotonic() < until:
            if not (rows := self._file.read(_AT_ONCE)):
                break  # the file cannot be read just now
            self._add([row for row in rows if row.get("kind") == "train"])
        return not self._file.unread

    def _add(self, rows: Sequence[dict[str, Any]]) -> None:
        self._curve.add(*([finite_number(row.get(name)) for row in rows] for name in _AXES))
        if rows:
            bad = rows[-1].get("nonfinite")
            self._diverged = isinstance(bad, list) and "train_loss" in bad


def _row(key: str, run: Run, status: RunStatus) -> dict[str, Any]:
    """Return the row of a run; of a damaged folder one that reports the error."""
    try:
        return _status_fields(key, run, status) | _progress_fields(run, status)
    except _DAMAGED as error:
        why = f"the folder cannot be read: {error}"
        return _status_fields(key, run, RunStatus(run, JobState.UNKNOWN, why=why)) | dict.fromkeys(
            _PROGRESS_FIELDS
        )


def _status_fields(key: str, run: Run, status: RunStatus) -> dict[str, Any]:
    return {
        "id": key,
        "name": run.name,
        "folder": str(run.path),
        "scheduler": run.scheduler,
        "job_id": status.job_id,
        "state": status.state.value,
        "exit_code": status.exit_code,
        "active": status.state.active,
        "ended": status.state.ended,
        "why": status.why,
        "expected_start": unix_seconds(status.expected_start),
        "created": unix_seconds(run.created),
        "end": unix_seconds(status.end),
        "nodes": status.nodes,
    }


def _progress_fields(run: Run, status: RunStatus) -> dict[str, Any]:
    """Return the fields from its attempts."""
    entries = attempt_history(run.attempts, running=status.is_running)
    last = entries[-1] if entries else None
    progress = _progress(run, last.attempt if last else None, status.state)
    has_steps = last is not None and last.first_step is not None
    return {
        "start": unix_seconds(entries[0].attempt.start if entries else status.start),
        "elapsed": sum(entry.seconds for entry in entries) or None,
        "attempts": len(entries),
        "tasks": len({entry.attempt.array_task for entry in entries} - {""}),
        "goodput": goodput(entries).share if has_steps else None,
        "step": progress.step,
        "total_steps": progress.total_steps,
        "eta": progress.eta_seconds,
    }


def _progress(run: Run, last: Attempt | None, state: JobState) -> TrainingProgress:
    """Return the progress of an active run from its metrics, else what rank 0 recorded last."""
    if last is not None and state.active:
        folder = run.path / "tasks" / last.array_task if last.array_task else run.path
        return pace_of_folder(folder, last, state)
    written = last.progress if last else None
    return TrainingProgress(written.step, written.total_steps) if written else TrainingProgress()
