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
from allranks.observe.view.curve_thinning import Curve
from allranks.observe.view.json_numbers import real, seconds
from allranks.observe.view.model import TrainingProgress
from allranks.observe.view.training_progress import pace_of_folder
from allranks.observe.web.request_cache import StatusCache
from allranks.runs.attempt import Attempt
from allranks.runs.attempt_history import attempt_history, goodput
from allranks.runs.jsonl_tail import JsonlTail
from allranks.runs.run import Run
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
    """Rows of runs, with what was read of each kept until its files change."""

    def __init__(self, states: StatusCache) -> None:
        self._states = states
        self._curves: dict[Path, _LossCurve] = {}
        self._turn = 0
        self._ended: dict[Path, tuple[RunStatus, dict[str, Any]]] = {}
        self._lock = threading.Lock()

    def rows(self, runs: Sequence[tuple[str, Run]], *, curves: bool = True) -> list[dict[str, Any]]:
        """One for each run, in their order, with its loss curve or without."""
        statuses = self._states.of([run for _, run in runs])
        with self._lock:
            if curves:
                self._read([run.path for _, run in runs], time.monotonic() + _PATIENCE)
            return [
                self._row(key, run, status) | (self._curves[run.path].told() if curves else {})
                for (key, run), status in zip(runs, statuses, strict=True)
            ]

    def _row(self, key: str, run: Run, status: RunStatus) -> dict[str, Any]:
        """Of a run that has ended the files are read again only when its state was asked for again."""
        before, row = self._ended.get(run.path, (None, {}))
        if before is not status or row["id"] != key:
            row = _row(key, run, status)
            self._ended |= {run.path: (status, row)} if status.state.ended else {}
        return row

    def _read(self, paths: Sequence[Path], until: float) -> None:
        """As many curves as there is time for; the next request goes on with those left over."""
        self._curves = {path: self._curves.get(path) or _LossCurve(path) for path in paths}
        begin = self._turn % max(len(paths), 1)
        for path in [*paths[begin:], *paths[:begin]]:
            if time.monotonic() > until:
                break
            self._turn += self._curves[path].read(until)


class _LossCurve:
    """The loss curve of the training under way: only what was added is read."""

    def __init__(self, folder: Path) -> None:
        self._file = JsonlTail(folder / "metrics.jsonl")
        self._clear()

    def told(self) -> dict[str, Any]:
        """The losses up to where there was time to read, thinned; whether the newest is no number."""
        return {"curve": [loss for _, loss in self._curve.points()], "diverged": self._diverged}

    def read(self, until: float) -> bool:
        """Go on until then; True when nothing is left."""
        generation = self._file.generation
        self._file.refresh()
        if self._file.generation != generation:
            self._clear()
        while self._done < len(self._file) and time.monotonic() < until:
            if not (rows := self._file.since(self._done, self._done + _AT_ONCE)):
                break  # the file cannot be read just now
            self._add([row for row in rows if row.get("kind") == "train"])
            self._done += len(rows)
        return self._done == len(self._file)

    def _clear(self) -> None:
        self._curve = Curve(_POINTS)
        self._done = 0
        self._diverged = False

    def _add(self, rows: Sequence[dict[str, Any]]) -> None:
        self._curve.add(*([real(row.get(name)) for row in rows] for name in _AXES))
        if rows:
            bad = rows[-1].get("nonfinite")
            self._diverged = isinstance(bad, list) and "train_loss" in bad


def _row(key: str, run: Run, status: RunStatus) -> dict[str, Any]:
    """A folder with something in it that nobody expects has a row that says so, and the list goes on."""
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
        "expected_start": seconds(status.expected_start),
        "created": seconds(run.created),
        "end": seconds(status.end),
        "nodes": status.nodes,
    }


def _progress_fields(run: Run, status: RunStatus) -> dict[str, Any]:
    """What its attempts tell."""
    entries = attempt_history(run.attempts, running=status.is_running)
    last = entries[-1] if entries else None
    progress = _progress(run, last.attempt if last else None, status.state)
    told = last is not None and last.first_step is not None
    return {
        "start": seconds(entries[0].attempt.start if entries else status.start),
        "elapsed": sum(entry.seconds for entry in entries) or None,
        "attempts": len(entries),
        "tasks": len({entry.attempt.array_task for entry in entries} - {""}),
        "goodput": goodput(entries).share if told else None,
        "step": progress.step,
        "total_steps": progress.total_steps,
        "eta": progress.eta_seconds,
    }


def _progress(run: Run, last: Attempt | None, state: JobState) -> TrainingProgress:
    """Of a living run as its own page has it; of any other what rank 0 wrote down last is enough."""
    if last is not None and state.active:
        folder = run.path / "tasks" / last.array_task if last.array_task else run.path
        return pace_of_folder(folder, last, state)
    written = last.progress if last else None
    return TrainingProgress(written.step, written.total_steps) if written else TrainingProgress()
