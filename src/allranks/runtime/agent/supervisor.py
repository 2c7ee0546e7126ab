"""The event loop: what the ranks print, how they end, which signals they get.

One rule above all: nothing here may block. Output waits in buffers, deaths and signals arrive on a
descriptor, and every wait has a deadline once the ranks have been told to end.
"""

from __future__ import annotations

import select
import selectors
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from allranks.runtime.agent.attempt_files import Attempt
from allranks.runtime.agent.children import Child
from allranks.runtime.agent.console import Console
from allranks.runtime.agent.linux_processes import SI_KERNEL, Caught, read_signals, send
from allranks.runtime.agent.notices import Notices
from allranks.runtime.agent.rank_outcomes import Ends, any_failure
from allranks.runtime.agent.rank_pipes import Output

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
HANDLED = (*STOPPING, *PASSED_ON, signal.SIGCHLD)

# One stop may reach us twice at once: Slurm signals every process of a step, and torchrun then
# passes the signal on as well. Only a later one means that somebody lost patience.
_SAME_STOP = 1.0
_SAME_SIGNAL = 0.2
_LOOK = 1.0


class Grace(NamedTuple):
    """Seconds between TERM and KILL."""

    failed: float
    """When a rank has failed, and for Ctrl-C."""
    told: float | None
    """When somebody outside says TERM: the ranks may be saving. None: as long as they need, where a
    scheduler sets the limit."""


class Given(NamedTuple):
    """What the supervisor must know beside the ranks."""

    signals: int
    """The descriptor on which signals arrive."""
    notices: Notices
    """What other threads have to say."""
    guard: int
    """The guard's process id: a child of ours too, and it stays to the end."""
    command: Sequence[str]
    grace: Grace
    keep_terminal: bool
    pass_on: bool = True
    """Whether USR1, USR2 and CONT are for us to pass on; Slurm gives them to the ranks itself."""
    peers: Path | None = None
    """Where the failures of all ranks are written; looked at when the launcher ends nobody."""


class Supervisor:
    """Watches the ranks of one node until all have ended."""

    def __init__(
        self, ranks: list[Child], console: Console, attempt: Attempt, given: Given
    ) -> None:
        self._signals = given.signals
        self._notices = given.notices
        self._console = console
        self._attempt = attempt
        self._grace = given.grace
        self._keep_terminal = given.keep_terminal
        self._peers = given.peers
        self._pass_on = given.pass_on
        self._selector = selectors.PollSelector()
        for fd in (given.signals, given.notices.fd):
            self._selector.register(fd, selectors.EVENT_READ, None)
        self._output = Output(ranks, console, attempt, self._selector)
        self._ends = Ends(ranks, self._output, attempt, given.command, given.guard)
        self._stopped: float | None = None
        self._deadline: float | None = None
        self.failed = self._ends.failed

    def run(self) -> int:
        """Watch; returns the exit code of the first rank that failed, else 0."""
        while self._ends.alive:
            self._turn(self._timeout())
        self._end_leftovers()
        self._output.close()
        return self._ends.settle()

    def tell(self) -> None:
        """Put on the console what waits for it, as far as it takes that at once."""
        for text in self._notices.read():
            self._console.say(text)
        self._console.pump()

    # The loop

    def _timeout(self) -> float | None:
        if self._deadline is not None:
            return max(self._deadline - time.monotonic(), 0)
        return _LOOK if self._peers else None

    def _look_at_peers(self) -> None:
        if self._stopped is None and any_failure(self._peers):
            self._stop(signal.SIGTERM, self._grace.failed)

    def _turn(self, timeout: float | None) -> None:
        """Wait for something to happen and deal with it."""
        writers = self._console.waiting()
        self._output.wanted(not self._console.full())
        for fd in writers:
            self._selector.register(fd, selectors.EVENT_WRITE, None)
        ready = self._selector.select(timeout)
        for fd in writers:
            self._selector.unregister(fd)
        for key, _ in ready:
            if key.data is not None:
                self._output.read(key.data)
        for caught in read_signals(self._signals):
            self._handle(caught)
        self.tell()
        if not ready:
            self._look_at_peers()
        if self._deadline is not None and time.monotonic() >= self._deadline:
            self._kill()

    # Ends

    def _reap(self) -> None:
        """Ranks have ended: one that failed takes the others with it."""
        ended = self._ends.collect()
        if self._stopped is None and any(-code in STOPPING for _, code in ended):
            self._wait_for_the_same_signal()
            ended += self._ends.collect()
        bad = self._ends.judge(ended, self._stopped)
        if bad and self._stopped is None:
            self._stop(signal.SIGTERM, self._grace.failed)
        elif any(code > 0 and code != 128 + signal.SIGTERM for code in bad):
            # It failed while all were leaving: the others wait for it in vain.
            self._hasten()

    def _wait_for_the_same_signal(self) -> None:
        """Slurm signals every process of a step; a rank may get it, and be dead, before we do."""
        until = time.monotonic() + _SAME_SIGNAL
        while self._stopped is None and (left := until - time.monotonic()) > 0:
            select.select([self._signals], [], [], left)
            for caught in read_signals(self._signals):
                if caught.number != signal.SIGCHLD:  # the caller looks for those itself
                    self._handle(caught)

    def _hasten(self) -> None:
        soon = time.monotonic() + self._grace.failed
        self._deadline = soon if self._deadline is None else min(self._deadline, soon)

    def _end_leftovers(self) -> None:
        """What the ranks had started and left behind: workers, servers, a shell's child."""
        until = time.monotonic() + self._grace.failed
        told = False
        while left := self._ends.leftovers():
            if time.monotonic() >= until:
                send(left, signal.SIGKILL)
            elif not told:
                send(left, signal.SIGTERM)
                told = True
            self._turn(0.05)

    # Signals

    def _handle(self, caught: Caught) -> None:
        if caught.number == signal.SIGCHLD:
            self._reap()
        elif caught.number in PASSED_ON:
            if self._pass_on:
                send(self._ends.alive, caught.number)
        elif self._stopped is None:
            # In one group with us the rank has got the terminal's Ctrl-C already.
            had_it = (
                self._keep_terminal and caught.number == signal.SIGINT and caught.code == SI_KERNEL
            )
            self._stop(None if had_it else _as_sent(caught.number), self._patience(caught.number))
        elif caught.number != signal.SIGTERM and time.time() - self._stopped > _SAME_STOP:
            self._kill()  # TERM is said again by schedulers, and ranks may be saving

    def _patience(self, number: int) -> float | None:
        """Launchers say TERM as well when a rank has failed: then there is nothing to save."""
        failed = any_failure(self._attempt.failures)
        return self._grace.failed if failed or number == signal.SIGINT else self._grace.told

    def _stop(self, number: int | None, grace: float | None) -> None:
        """Tell the ranks to end, and give them the grace time for it."""
        self._stopped = time.time()
        self._deadline = None if grace is None else time.monotonic() + grace
        if number == signal.SIGINT and not self._keep_terminal:
            # As a terminal does it: the whole group, and each rank leads one. Workers count on it,
            # and Python waits for them at the end of the rank.
            send([-pid for pid in self._ends.alive], number)
        elif number is not None:
            # The rank alone: a DataLoader that loses its workers raises an error in the middle of
            # the rank's own clean end.
            send(self._ends.alive, number)

    def _kill(self) -> None:
        """Nobody may ignore this. What a rank had started dies with it."""
        self._deadline = time.monotonic() + 1
        send(self._ends.leftovers(), signal.SIGKILL)


def _as_sent(number: int) -> int:
    return signal.SIGINT if number == signal.SIGINT else signal.SIGTERM
