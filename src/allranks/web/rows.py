"""A run in one row of the list: little enough to read that hundreds of runs can be shown at once.

A loss curve costs reading metrics.jsonl, so each request reads for a moment only; the next one goes on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from allranks.monitor.numbers import real
from allranks.monitor.series import Curve
from allranks.runs.folder import Run
from allranks.runs.jsonl_tail import JsonlTail
from allranks.runs.ledger import goodput, stories
from allranks.runs.progress import Progress
from allranks.schedulers.status import RunStatus
from allranks.web.following import States

_PATIENCE = 0.3  # seconds of a request for reading curves
_POINTS = 48
_AXES = ("step", "train_loss")
_AT_ONCE = 5000  # lines between two looks at the clock


class Rows:
    """Rows of runs, with what was read of each kept until its files change."""

    def __init__(self, states: States) -> None:
        self._states = states
        self._curves: dict[Path, _Losses] = {}
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
                self._row(key, run, status)
                | {"curve": self._curves[run.path].points() if curves else []}
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
        self._curves = {path: self._curves.get(path) or _Losses(path) for path in paths}
        begin = self._turn % max(len(paths), 1)
        for path in [*paths[begin:], *paths[:begin]]:
            if time.monotonic() > until:
                break
            self._turn += self._curves[path].read(until)


class _Losses:
    """The loss curve of the training under way: only what was added is read."""

    def __init__(self, folder: Path) -> None:
        self._file = JsonlTail(folder / "metrics.jsonl")
        self._curve = Curve(_POINTS)
        self._done = 0

    def points(self) -> list[float]:
        """The losses up to where there was time to read, thinned."""
        return [loss for _, loss in self._curve.points()]

    def read(self, until: float) -> bool:
        """Go on until then; True when nothing is left."""
        generation = self._file.generation
        self._file.refresh()
        if self._file.generation != generation:
            self._curve, self._done = Curve(_POINTS), 0
        while self._done < len(self._file) and time.monotonic() < until:
            rows = self._file.since(self._done, self._done + _AT_ONCE)
            mine = [row for row in rows if row.get("kind") == "train"]
            steps, losses = ([real(row.get(name)) for row in mine] for name in _AXES)
            self._curve.add(steps, losses)
            self._done += len(rows)
        return self._done == len(self._file)


def _row(key: str, run: Run, status: RunStatus) -> dict[str, Any]:
    active = status.state.active
    entries = stories(run.attempts, running=active)
    progress = entries[-1].attempt.progress if entries else None
    return {
        "id": key,
        "name": run.name,
        "folder": str(run.path),
        "scheduler": run.scheduler,
        "job_id": status.job_id,
        "state": status.state.value,
        "exit_code": status.exit_code,
        "active": active,
        "ended": status.state.ended,
        "why": status.why,
        "expected_start": seconds(status.expected_start),
        "created": seconds(run.created),
        "start": seconds(entries[0].attempt.start if entries else status.start),
        "end": seconds(status.end),
        "elapsed": sum(entry.seconds for entry in entries) or None,
        "nodes": status.nodes,
        "attempts": len(entries),
        "tasks": len({entry.attempt.array_task for entry in entries} - {""}),
        "goodput": goodput(entries).share if progress else None,
        "step": progress.step if progress else None,
        "total_steps": progress.total_steps if progress else None,
        "eta": _eta(progress) if progress and active else None,
    }


def seconds(moment: datetime | None) -> float | None:
    """Since 1970; a time without a zone is a local one."""
    return moment.timestamp() if moment else None


def _eta(progress: Progress) -> float | None:
    """At the pace of this attempt so far, seen from now."""
    steps = progress.step - progress.first_step
    if not progress.total_steps or steps <= 0 or not progress.began or not progress.updated:
        return None
    pace = (progress.updated - progress.began) / steps
    left = (progress.total_steps - progress.step) * pace
    return max(left - (datetime.now(timezone.utc).timestamp() - progress.updated), 0.0)
