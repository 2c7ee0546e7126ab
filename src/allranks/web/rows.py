"""A run in one row of the list: little enough to read that hundreds of runs can be shown at once.

A loss curve costs reading metrics.jsonl, so each request reads new ones for a moment only; the rest
come with the next.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from allranks.monitor.series import thin
from allranks.runs.folder import Run
from allranks.runs.ledger import goodput, stories
from allranks.runs.progress import Progress
from allranks.schedulers.status import RunStatus
from allranks.web.following import States

_PATIENCE = 0.3  # seconds of a request for curves that were not read before
_POINTS = 48

Mark = tuple[int, int] | None


class Rows:
    """Rows of runs, with what was read of each kept until its files change."""

    def __init__(self, states: States) -> None:
        self._states = states
        self._curves: dict[Path, tuple[Mark, list[float]]] = {}
        self._ended: dict[Path, tuple[RunStatus, dict[str, Any]]] = {}
        self._lock = threading.Lock()

    def rows(self, runs: Sequence[tuple[str, Run]]) -> list[dict[str, Any]]:
        """One for each run, in their order."""
        statuses = self._states.of([run for _, run in runs])
        with self._lock:
            until = time.monotonic() + _PATIENCE
            return [
                self._row(key, run, status) | {"curve": self._curve(run, until)}
                for (key, run), status in zip(runs, statuses, strict=True)
            ]

    def _row(self, key: str, run: Run, status: RunStatus) -> dict[str, Any]:
        """Of a run that has ended the files are read again only when its state was asked for again."""
        before, row = self._ended.get(run.path, (None, {}))
        if before is not status:
            row = _row(key, run, status)
            self._ended |= {run.path: (status, row)} if status.state.ended else {}
        return row

    def _curve(self, run: Run, until: float) -> list[float] | None:
        """The losses, thinned; None: there was no time for it yet."""
        mark = _mark(run.path / "metrics.jsonl")
        known = self._curves.get(run.path)
        if known and (known[0] == mark or time.monotonic() > until):
            return known[1]
        if time.monotonic() > until:
            return None
        columns = run.metrics().columns("train", ["step", "train_loss"]) if mark else {}
        _, losses = thin(columns.get("step", []), columns.get("train_loss", []), _POINTS)
        self._curves[run.path] = (mark, losses)
        return losses


def _mark(path: Path) -> Mark:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size


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
