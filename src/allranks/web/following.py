"""The runs that someone looks at, held open: their numbers are read once and then only what is added."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from allranks.monitor.source import Source
from allranks.runs.folder import Run
from allranks.schedulers.status import RunStatus, run_statuses

_MOST = 12  # runs held; a comparison has six
_FRESH = 1.0  # seconds for which what was read holds: several requests of one look read once
_ASKED = 4.0  # seconds for which a state holds, so that the queue is not asked by every look
_ENDED = 20.0  # the same of a run that has ended: only someone who resumes it changes that


@dataclass
class _Held:
    source: Source
    lock: threading.Lock = field(default_factory=threading.Lock)
    read: float = float("-inf")


class Following:
    """Sources by run folder; those not asked for longest are given up first."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._held: OrderedDict[Path, _Held] = OrderedDict()
        self._lock = threading.Lock()

    @contextmanager
    def source(self, run: Run) -> Iterator[Source]:
        """The run's numbers up to now, for one request at a time."""
        held = self._get(run)
        with held.lock:
            if time.monotonic() - held.read > _FRESH:
                held.source.refresh()
                held.read = time.monotonic()
            yield held.source

    def _get(self, run: Run) -> _Held:
        with self._lock:
            held = self._held.setdefault(run.path, _Held(Source(run)))
            self._held.move_to_end(run.path)
            while len(self._held) > self._most:
                self._held.popitem(last=False)
            return held


class States:
    """The states of runs, asked for together and not more often than they can change.

    Slurm may take its time: nobody waits for it who has been told a state before.
    """

    def __init__(self) -> None:
        self._known: dict[Path, tuple[float, RunStatus]] = {}
        self._lock = threading.Lock()

    def of(self, runs: Sequence[Run], *, wait: bool = False) -> list[RunStatus]:
        """One state for each run, in their order; with ``wait`` none that is out of date."""
        if wait or any(run.path not in self._known for run in runs):
            with self._lock:
                self._ask(runs)
        elif any(self._stale(run) for run in runs):
            threading.Thread(target=self._ask_beside, args=(runs,), daemon=True).start()
        return [self._known[run.path][1] for run in runs]

    def _ask_beside(self, runs: Sequence[Run]) -> None:
        if self._lock.acquire(blocking=False):  # else someone asks already
            try:
                self._ask(runs)
            finally:
                self._lock.release()

    def _ask(self, runs: Sequence[Run]) -> None:
        for status in run_statuses([run for run in runs if self._stale(run)]):
            self._known[status.run.path] = (time.monotonic(), status)

    def _stale(self, run: Run) -> bool:
        asked, status = self._known.get(run.path, (float("-inf"), None))
        lasts = _ENDED if status is not None and status.state.ended else _ASKED
        return time.monotonic() - asked > lasts
