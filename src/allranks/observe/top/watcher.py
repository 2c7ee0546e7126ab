"""Looks after a run beside the screen: neither a slow Slurm nor a slow disk holds a key up."""

from __future__ import annotations

import threading
from collections.abc import Callable

from allranks.cluster.slurm.job_states import JobState
from allranks.observe.view.model import RunView
from allranks.observe.view.run_source import RunSource
from allranks.observe.view.run_view import view_run
from allranks.runs.run import Run
from allranks.schedulers import jobs_to_query, run_statuses
from allranks.schedulers.run_state import RunStatus

ASKED_EVERY = 10.0
"""Seconds between two questions to Slurm."""
ENDED_EVERY = 60.0
"""After the end: somebody may resume the run."""
ANSWER = 10.0
"""Seconds that one look waits for Slurm."""
_FIRST_ANSWER = 0.5
"""How long the first picture waits for Slurm."""


class Watcher:
    """The latest snapshot of a run, kept fresh by two threads: one asks Slurm, one reads files."""

    def __init__(
        self, run: Run, every: float, changed: Callable[[], None], task: str | None = None
    ) -> None:
        self.snapshot: RunView | None = None
        self.error: Exception | None = None
        """What ended a thread: raised again by whoever shows the run."""
        self._run = run
        self._task = task
        self._every = every
        self._changed = changed
        self._status: RunStatus | None = None
        self._answered = threading.Event()
        self._due = threading.Event()
        self._over = threading.Event()

    def start(self) -> None:
        """Begin; the threads die with the program."""
        for work in (self._ask, self._read):
            threading.Thread(target=self._guarded, args=(work,), daemon=True).start()

    def stop(self) -> None:
        """End soon; a question to Slurm that is under way is not waited for."""
        self._over.set()
        self._due.set()

    def _guarded(self, work: Callable[[], None]) -> None:
        while not self._over.is_set():
            try:
                work()
            except OSError:  # a file system that is away for a while: the last picture stays
                self._over.wait(self._every)
            except Exception as error:  # noqa: BLE001 - raised again where the run is shown
                self.error = error
                self._changed()
                return

    def _ask(self) -> None:
        while not self._over.is_set():
            self._status = status = run_statuses([Run.open(self._run.path)])[0]
            self._answered.set()
            self._due.wait(self._pause(status))
            self._due.clear()

    def _pause(self, status: RunStatus) -> float:
        """Until the next question; a run whose folder tells how it stands costs Slurm nothing."""
        if not jobs_to_query(status.run):
            return self._every
        return ENDED_EVERY if status.state.ended else ASKED_EVERY

    def _read(self) -> None:
        source = RunSource(self._run, self._task)
        self._answered.wait(_FIRST_ANSWER)
        while not self._over.is_set():
            waiting = self._status is None
            status = self._status or _asking(self._run)
            before, self.snapshot = self.snapshot, _look(source, status)
            if before is not None and _lives(before) != _lives(self.snapshot):
                self._due.set()  # an attempt began or ended: the state is another one now
            self._changed()
            if waiting:
                self._answered.wait(self._every)
            else:
                self._over.wait(self._every)


def _lives(snapshot: RunView) -> list[str]:
    return [entry.attempt.outcome for entry in snapshot.attempts]


def look(run: Run, task: str | None = None) -> RunView:
    """One snapshot of a run, its scheduler asked."""
    return _look(RunSource(run, task), run_statuses([run], ANSWER)[0])


def _look(source: RunSource, status: RunStatus) -> RunView:
    source.lives.hear(status)  # which task is followed, depends on it
    source.refresh()
    return view_run(source, status)


def _asking(run: Run) -> RunStatus:
    job = run.job_ids[-1] if run.job_ids else ""
    return RunStatus(
        run, JobState.UNKNOWN, job, why="Slurm has not answered yet", attempts=len(run.attempts)
    )
