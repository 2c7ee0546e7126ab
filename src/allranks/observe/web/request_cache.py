"""What requests of the page share: open runs, their states, and the user's queue on Slurm.

Files are read once and then only what was added; Slurm is queried in a thread and not by every request.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from allranks.cluster.slurm.job_states import JobState
from allranks.cluster.slurm.job_status import JobStatus
from allranks.cluster.slurm.jobs import list_jobs
from allranks.cluster.slurm.pending_reasons import pending_reason_text
from allranks.core.json_numbers import unix_seconds
from allranks.errors import AllranksError
from allranks.observe.view.run_source import RunSource
from allranks.runs.run_folder import Run
from allranks.schedulers import folder_status, jobs_to_query, run_statuses
from allranks.schedulers.run_state import RunStatus


class BackgroundTask:
    """Runs one task at a time in a thread; requests meanwhile are ignored and can be repeated."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self, work: Callable[[], None]) -> threading.Thread:
        """Start the work; return its thread, or the one that is still running."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=work, daemon=True)
                self._thread.start()
            return self._thread


_MOST = 12  # runs held; a comparison has six
FRESH_SECONDS = 1.0  # seconds for which what was read holds: several requests of one look read once
STATE_SECONDS = 4.0  # seconds for which a state holds, so that the queue is not asked by every look
_SETTLED = 20.0  # the same of a run whose folder records its end: only its files are read
_QUIET = 60.0  # of one that Slurm alone says is over, or that it has forgotten: longer each time
_QUIETEST = 600.0
FIRST_WAIT_SECONDS = 1.0  # seconds that the first look at a run waits for Slurm


@dataclass
class _Held:
    source: RunSource
    lock: threading.Lock = field(default_factory=threading.Lock)
    read: float = float("-inf")


class SourceCache:
    """Sources by run folder; the least recently used are dropped first."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._held: OrderedDict[tuple[Path, str | None], _Held] = OrderedDict()
        self._lock = threading.Lock()

    @contextmanager
    def source(self, run: Run, task: str | None = None) -> Iterator[RunSource]:
        """Yield the run's up-to-date source, for one request at a time."""
        held = self._get(run, task)
        with held.lock:
            if time.monotonic() - held.read > FRESH_SECONDS:
                held.source.refresh()
                held.read = time.monotonic()
            yield held.source

    def _get(self, run: Run, task: str | None) -> _Held:
        key = run.path, task
        with self._lock:
            held = self._held.setdefault(key, _Held(RunSource(run, task)))
            self._held.move_to_end(key)
            while len(self._held) > self._most:
                self._held.popitem(last=False)
            return held


@dataclass(frozen=True)
class _KnownStatus:
    status: RunStatus
    until: float
    valid_for: float


class StatusCache:
    """The states of runs, queried together and not more often than they can change.

    Slurm may take its time, so it is asked beside, one question at a time; until it answers, a run is
    what it was before, or what its folder says.
    """

    def __init__(self) -> None:
        self._known: dict[Path, _KnownStatus] = {}
        self._seen: set[Path] = set()
        self._background = BackgroundTask()

    def of(self, runs: Sequence[Run], *, wait: float = 0.0) -> list[RunStatus]:
        """Return one status per run, in their order; ``wait``: seconds for Slurm to answer."""
        due = [run for run in runs if self._due(run)]
        slow = {run.path for run in due if jobs_to_query(run)}
        self._query([run for run in due if run.path not in slow])
        if asked := [run for run in due if run.path in slow]:
            new = {run.path for run in asked} - self._seen
            self._seen |= new
            asking = self._background.start(lambda: self._query(asked))
            asking.join(max(wait, FIRST_WAIT_SECONDS if new else 0.0))
        return [self._state(run) for run in runs]

    def _state(self, run: Run) -> RunStatus:
        known = self._known.get(run.path)
        return known.status if known else folder_status(run)

    def _due(self, run: Run) -> bool:
        known = self._known.get(run.path)
        if known is None or known.status.run.job_ids != run.job_ids:
            return True
        return time.monotonic() > known.until

    def _query(self, runs: Sequence[Run]) -> None:
        settled = {run.path for run in runs if self._has_recorded_end(run)}
        for path in settled:
            self._store(self._known[path].status, _SETTLED)
        for status in run_statuses([run for run in runs if run.path not in settled]):
            self._store(status, self._validity(status))

    def _store(self, status: RunStatus, lasts: float) -> None:
        before = self._known.get(status.run.path)
        same = before.status if before and before.status == status else status
        self._known[status.run.path] = _KnownStatus(same, time.monotonic() + lasts, lasts)

    def _has_recorded_end(self, run: Run) -> bool:
        """Return whether it has ended, and its folder still has the same end."""
        known, last = self._known.get(run.path), run.last_attempt
        if known is None or not known.status.state.ended or last is None or run.array:
            return False
        same = known.status.run.job_ids == run.job_ids and known.status.attempts == last.number
        return same and last.exit_code is not None and not last.has_successor

    def _validity(self, status: RunStatus) -> float:
        """Return how long a status holds: briefly while it runs, longer the longer nothing changes."""
        over = status.state.ended or status.state is JobState.UNKNOWN
        if not over or not jobs_to_query(status.run):
            return STATE_SECONDS
        before = self._known.get(status.run.path)
        if before is None or before.status != status or before.valid_for < _QUIET:
            return _QUIET
        return min(2 * before.valid_for, _QUIETEST)


_QUEUE = 10.0  # seconds for which the queue holds


class QueuedJobs:
    """The user's jobs on Slurm that are not runs of allranks; nothing without Slurm."""

    def __init__(self) -> None:
        self._queried = float("-inf")
        self._background = BackgroundTask()
        self._jobs: list[JobStatus] | None = None

    def jobs(self, ours: set[str]) -> list[dict[str, Any]] | None:
        """Return the jobs of the last query, and start another if due; None without Slurm."""
        if time.monotonic() - self._queried > _QUEUE:
            self._queried = time.monotonic()
            self._background.start(self._query)
        jobs = self._jobs  # the thread may change it meanwhile
        if jobs is None:
            return None
        return [_job(job) for job in jobs if not _ids(job) & ours]

    def _query(self) -> None:
        try:
            self._jobs = list_jobs(timeout=30)
        except AllranksError:
            self._jobs = None


def _ids(job: JobStatus) -> set[str]:
    return {job.job_id, job.job_id.partition("_")[0].partition("+")[0], job.raw_id}


def _job(job: JobStatus) -> dict[str, Any]:
    pending = job.state is JobState.PENDING
    return {
        "job_id": job.job_id,
        "name": job.name,
        "state": job.state.value,
        "why": pending_reason_text(job.reason).replace("JOBID", job.job_id) if pending else "",
        "nodes": job.nodes,
        "partition": job.partition,
        "start": unix_seconds(job.start),
        "expected_start": unix_seconds(job.expected_start),
        "time_limit": job.time_limit,
    }
