"""Waiting for a launcher, and passing on to it what a user or a system tells us."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from types import FrameType

from allranks.runtime.agent.linux_processes import agents_below, send

GRACE, TOLD_GRACE = 15.0, 65.0
"""Seconds that a launcher has to end its ranks after Ctrl-C, and after TERM: ranks may be saving."""


class Watch:
    """Waits for the launcher and passes signals on to it.

    Ctrl-C on a terminal reaches the launcher by itself. TERM, USR1 and USR2 go to the agents around
    the ranks, which may want to save: launchers would end them before they have. A second signal that
    is not TERM, or a launcher that has not ended after the grace time, is answered by KILL; the sweep
    then ends what it left.
    """

    STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)

    def __init__(self, process: subprocess.Popen[bytes], group: bool = False) -> None:
        self.process = process
        self.group = group
        """The process leads a session of its own, so no Ctrl-C reaches it but through us."""
        self.asked = False
        self.code = 0

    def wait(self, beside: Callable[[], object] = lambda: None) -> int:
        """The exit code as a shell gives it; ``beside`` is done while the launcher runs."""
        before = {
            number: signal.signal(number, self._handle)
            for number in (*self.STOPPING, *self.PASSED_ON, signal.SIGALRM)
        }
        try:
            beside()
            code = self.process.wait()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            for number, handler in before.items():
                signal.signal(number, handler)
        self.code = code if code >= 0 else 128 - code
        return self.code

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number in self.PASSED_ON:
            self._send(number)
            return
        if self.asked and number != signal.SIGTERM:
            self._send(signal.SIGKILL)
        elif self.group and not self.asked:
            self._send(signal.SIGTERM)
        elif not self.asked and (number != signal.SIGINT or not os.isatty(0)):
            self._send(number)
        if not self.asked:
            signal.setitimer(signal.ITIMER_REAL, _grace(number))
        self.asked = True

    def _send(self, number: int) -> None:
        if self.process.poll() is not None:
            return
        if number in (signal.SIGTERM, *self.PASSED_ON) and not self.group:
            send(agents_below(self.process.pid) or [self.process.pid], number)
        elif not self.group:
            self.process.send_signal(number)
        elif number not in self.PASSED_ON:
            os.killpg(self.process.pid, number)


def _grace(number: int) -> float:
    """Seconds for the agents to end their ranks, after the grace time that those have themselves."""
    given = os.environ.get("ALLRANKS_GRACE", "")
    usual = TOLD_GRACE if number == signal.SIGTERM else GRACE
    return float(given) + 5 if given.replace(".", "", 1).isdigit() else usual
