"""The live view of a run: threads keep its numbers fresh, the screen is redrawn at each change or key."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Callable
from dataclasses import replace

from rich.console import Console
from rich.text import Text

from allranks.cluster.slurm.job_states import JobState
from allranks.observe.top.footer import ViewSettings
from allranks.observe.top.frame import frame
from allranks.observe.top.terminal import Terminal
from allranks.observe.top.text_layout import Glyphs, glyphs_for
from allranks.observe.view.model import RunView
from allranks.observe.view.run_source import RunSource
from allranks.observe.view.run_view import view_run
from allranks.runs.run_folder import Run
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
    """The latest view of a run, updated by two threads: one queries Slurm, one reads files."""

    def __init__(
        self, run: Run, every: float, changed: Callable[[], None], task: str | None = None
    ) -> None:
        self.run_view: RunView | None = None
        self.error: Exception | None = None
        """The error that ended a thread; raised again where the run is shown."""
        self._run = run
        self._task = task
        self._every = every
        self._changed = changed
        self._status: RunStatus | None = None
        self._answered = threading.Event()
        self._due = threading.Event()
        self._over = threading.Event()

    def start(self) -> None:
        """Start the threads; they end with the program."""
        for work in (self._ask, self._read):
            threading.Thread(target=self._guarded, args=(work,), daemon=True).start()

    def stop(self) -> None:
        """Stop soon, without waiting for a pending query to Slurm."""
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
        """Return the time until the next query; a run whose folder has its state costs Slurm nothing."""
        if not jobs_to_query(status.run):
            return self._every
        return ENDED_EVERY if status.state.ended else ASKED_EVERY

    def _read(self) -> None:
        source = RunSource(self._run, self._task)
        self._answered.wait(_FIRST_ANSWER)
        while not self._over.is_set():
            waiting = self._status is None
            status = self._status or _unanswered_status(self._run)
            before, self.run_view = self.run_view, _refresh_view(source, status)
            if before is not None and _attempt_outcomes(before) != _attempt_outcomes(self.run_view):
                self._due.set()  # an attempt began or ended: the state is another one now
            self._changed()
            if waiting:
                self._answered.wait(self._every)
            else:
                self._over.wait(self._every)


def _attempt_outcomes(run_view: RunView) -> list[str]:
    return [entry.attempt.outcome for entry in run_view.attempts]


def view_once(run: Run, task: str | None = None) -> RunView:
    """Return one view of a run, with its scheduler queried."""
    return _refresh_view(RunSource(run, task), run_statuses([run], ANSWER)[0])


def _refresh_view(source: RunSource, status: RunStatus) -> RunView:
    source.run_attempts.update_status(status)  # which task is followed, depends on it
    source.refresh()
    return view_run(source, status)


def _unanswered_status(run: Run) -> RunStatus:
    job = run.job_ids[-1] if run.job_ids else ""
    return RunStatus(
        run, JobState.UNKNOWN, job, why="Slurm has not answered yet", attempts=len(run.attempts)
    )


INTERVAL = 2.0
"""Seconds between two pictures."""
PAGE_WIDTH = 120
"""Columns where there is no terminal: wide enough for everything."""


def is_live_terminal() -> bool:
    """Return whether there is a terminal that can be redrawn."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb")


def watch_run(run: Run, every: float = INTERVAL, task: str | None = None) -> None:
    """Show a run until the user quits; the run itself is not touched."""
    console = Console(highlight=False)
    glyphs = glyphs_for(console.encoding)
    try:
        with Terminal(console) as terminal:
            watcher = Watcher(run, every, terminal.wake, task)
            watcher.start()
            try:
                _loop(terminal, watcher, run, glyphs)
            finally:
                watcher.stop()
    except KeyboardInterrupt:
        return  # the usual way to leave such a view; it ends nothing


def _loop(terminal: Terminal, watcher: Watcher, run: Run, glyphs: Glyphs) -> None:
    view, shown = ViewSettings(), None
    terminal.draw([Text(f"reading {run.id} {glyphs.more}", "dim")])
    while not view.quit:
        for key in terminal.wait():
            view = view.after_key(key)
        if watcher.error is not None:
            raise watcher.error
        if not view.paused or shown is None:
            shown = watcher.run_view
        if shown is not None and not view.quit:
            view = _draw(terminal, shown, view, glyphs)


def _draw(
    terminal: Terminal, run_view: RunView, view: ViewSettings, glyphs: Glyphs
) -> ViewSettings:
    """Draw a frame; return the settings with the rows that it really shows."""
    width, height = terminal.screen.size()
    made = frame(run_view, width, height, view, glyphs)
    terminal.draw(made.lines)
    if view.help:
        return view
    return replace(view, first=made.first, page=max(made.shown, 1))


def print_page(run_view: RunView) -> None:
    """Print one frame with every row, as for a file or a pipe."""
    console = Console(highlight=False, width=shutil.get_terminal_size((PAGE_WIDTH, 24)).columns)
    made = frame(run_view, console.width, glyphs=glyphs_for(console.encoding))
    for line in made.lines:
        console.print(_replace_unencodable(line, console.encoding), soft_wrap=True)


def _replace_unencodable(line: Text, encoding: str) -> Text:
    """Replace what the output cannot encode by question marks."""
    plain = line.plain.encode(encoding, "replace").decode(encoding)
    if plain == line.plain:
        return line
    return Text(plain, line.style, spans=line.spans)
