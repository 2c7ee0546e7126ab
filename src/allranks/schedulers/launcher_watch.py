"""Wait for a launcher, and forward the signals that this process receives."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from types import FrameType

from allranks.core.background_thread import background_thread
from allranks.runtime.agent.attempt_files import AttemptFiles
from allranks.runtime.agent.console import Display
from allranks.runtime.agent.linux_processes import CaughtSignal, agents_below, send
from allranks.runtime.agent.rank_output import Child, RankOutput
from allranks.runtime.agent.supervisor import (
    DEFAULT_TERM_GRACE,
    STOPPING,
    Exits,
    Grace,
    Supervisor,
    ThreadEvents,
    read_grace,
)

_MARGIN = 5.0
"""Seconds for the agents to end, after the grace time that they give their ranks."""


class LauncherWatch(Supervisor):
    """Waits for the launcher and forwards signals to it.

    Ctrl-C on a terminal reaches the launcher by itself. TERM, USR1 and USR2 go to the agents around
    the ranks, which may want to save: launchers would end them before they have. A second signal that
    is not TERM, or a launcher that has not ended after the grace time, is answered by KILL; the sweep
    then ends what it left.
    """

    HANDLED = (*STOPPING, signal.SIGUSR1, signal.SIGUSR2)

    def __init__(self, process: subprocess.Popen[bytes], own_session: bool = False) -> None:
        self._wait_events = ThreadEvents()
        output = RankOutput([], Display(), AttemptFiles(None, print))
        super().__init__([Child(process.pid)], self._wait_events, output, _launcher_grace())
        self._process = process
        self._own_session = own_session
        """The process leads a session of its own, so no Ctrl-C reaches it but through us."""
        self.is_stopped = False
        """Whether this process was asked to stop."""
        self.code = 0

    def wait(self, meanwhile: Callable[[], object] = lambda: None) -> int:
        """Return the exit code as a shell gives it; ``meanwhile`` runs beside the launcher."""
        before = {number: signal.signal(number, self._post) for number in self.HANDLED}
        thread = background_thread(self.watch, "allranks launcher")
        self._wait_events.wait_for(self._process)
        thread.start()
        try:
            meanwhile()
            thread.join()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        self._wait_events.close()
        return self.code

    def _post(self, number: int, frame: FrameType | None) -> None:
        self.is_stopped = self.is_stopped or number in STOPPING
        self._wait_events.post(number)

    def on_exits(self, ended: Exits) -> None:
        [(_, code)] = ended
        self.code = code if code >= 0 else 128 - code

    def has_reached_children(self, caught: CaughtSignal) -> bool:
        return caught.number == signal.SIGINT and not self._own_session and os.isatty(0)

    def forward(self, number: int) -> None:
        if not self._own_session:
            self._signal_agents(number)

    def terminate(self, number: int) -> None:
        if self._own_session:
            send([-self._process.pid], signal.SIGTERM)
        elif number == signal.SIGTERM:
            self._signal_agents(number)
        else:
            super().terminate(number)

    def kill(self) -> None:
        send([-self._process.pid if self._own_session else self._process.pid], signal.SIGKILL)

    def _signal_agents(self, number: int) -> None:
        pid = self._process.pid
        send(agents_below(pid) or [pid], number)


def _launcher_grace() -> Grace:
    failed, terminated = read_grace(os.environ)
    if terminated is None:  # in an allocation, which may last for days
        terminated = DEFAULT_TERM_GRACE
    return Grace(failed + _MARGIN, terminated + _MARGIN)
