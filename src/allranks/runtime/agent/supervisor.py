"""Watch child processes until all have ended: their output, their exits, the signals they get.

`Supervisor` is the one event loop for it, with three users: the agent watches the ranks of a node
(`rank_supervisor`), a script the ranks that it started itself (`local_ranks`), and ``allranks run`` a
launcher (`schedulers.launcher_watch`). They share these rules: a signal is forwarded once; a stop sends
TERM and, after the grace time, KILL; a second stop other than TERM sends KILL at once.

Nothing in the loop may block. Output waits in buffers, exits and signals arrive on a descriptor, and
every wait has a deadline once the children have been asked to end.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, Protocol

from allranks.errors import UsageError
from allranks.runtime.agent.linux_processes import CaughtSignal, open_signals, read_signals, send
from allranks.runtime.agent.rank_output import Child, RankOutput

if TYPE_CHECKING:
    import subprocess
    import threading

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
FORWARDED = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
HANDLED = (*STOPPING, *FORWARDED, signal.SIGCHLD)

DEFAULT_GRACE, DEFAULT_TERM_GRACE = 10.0, 60.0
# One stop may reach us twice at once: Slurm signals every process of a step, and torchrun then
# forwards the signal as well. Only a later one means that somebody lost patience.
_SAME_STOP = 1.0

Exits = list[tuple[Child, int]]
"""Children that have ended, with their exit codes; minus the signal for those that one killed."""


class Grace(NamedTuple):
    """Seconds between TERM and KILL."""

    failed: float
    """After a failure, and after Ctrl-C."""
    terminated: float | None
    """After a TERM from outside, when the ranks may be saving. None: no limit, since the scheduler
    sets one."""


def read_grace(env: Mapping[str, str]) -> Grace:
    """Return the grace times: ALLRANKS_GRACE, or the defaults."""
    text = env.get("ALLRANKS_GRACE", "")
    if not text:
        # Slurm kills after the time that the site grants; there is no need to do it sooner.
        return Grace(DEFAULT_GRACE, None if "SLURM_JOB_ID" in env else DEFAULT_TERM_GRACE)
    try:
        return Grace(float(text), float(text))
    except ValueError:
        raise UsageError(f"ALLRANKS_GRACE={text} is not a number of seconds.") from None


class Events(Protocol):
    """Where signals and exits of children come from."""

    fd: int
    """Readable when there are any."""

    def read(self) -> list[CaughtSignal]:
        """Return the signals since the last call; SIGCHLD when a child may have ended."""

    def collect(self) -> list[tuple[int, int]]:
        """Return the process ids and exit codes of children that ended since the last call."""


class SignalEvents:
    """Events of a process that does nothing but supervise: its signals are blocked and read."""

    def __init__(self) -> None:
        self.fd = open_signals(HANDLED)

    def read(self) -> list[CaughtSignal]:
        return read_signals(self.fd)

    def collect(self) -> list[tuple[int, int]]:
        """Reap every child, also the orphans that a subreaper inherits."""
        found: list[tuple[int, int]] = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return found
            if pid == 0:
                return found
            found.append((pid, os.waitstatus_to_exitcode(status)))


class ThreadEvents:
    """Events for a supervisor in a thread beside other work, which may have children of its own.

    Signals are posted by Python's handlers; a thread waits for each child. Needs nothing of Linux.
    """

    def __init__(self) -> None:
        self.fd, self._writer = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._writer, False)
        self._posted: deque[int] = deque()
        self._exits: deque[tuple[int, int]] = deque()
        self._waiters: list[threading.Thread] = []

    def post(self, number: int) -> None:
        """Add a signal, from any thread or signal handler."""
        self._posted.append(number)
        self._wake()

    def wait_for(self, process: subprocess.Popen[bytes]) -> None:
        """Report the exit of this process when it comes."""
        from allranks.core.background_thread import background_thread

        def wait() -> None:
            code = process.wait()
            self._exits.append((process.pid, code))
            self._wake()

        thread = background_thread(wait, "allranks wait")
        thread.start()
        self._waiters.append(thread)

    def read(self) -> list[CaughtSignal]:
        with suppress(BlockingIOError):
            os.read(self.fd, 4096)
        found = [CaughtSignal(self._posted.popleft(), 0) for _ in range(len(self._posted))]
        return [*found, CaughtSignal(signal.SIGCHLD, 0)] if self._exits else found

    def collect(self) -> list[tuple[int, int]]:
        return [self._exits.popleft() for _ in range(len(self._exits))]

    def close(self) -> None:
        """Close the pipe, when all processes have ended and nothing is posted any more."""
        for thread in self._waiters:
            thread.join()
        os.close(self.fd)
        os.close(self._writer)

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # full: the reader has enough to wake up for
            os.write(self._writer, b"x")


class Supervisor:
    """The event loop over children, their output and the events of this process."""

    def __init__(
        self, children: Iterable[Child], events: Events, output: RankOutput, grace: Grace
    ) -> None:
        self.alive = {child.pid: child for child in children}
        self.stopped: float | None = None
        """When the children were asked to end, in seconds since the epoch."""
        self._deadline: float | None = None
        self._events = events
        self._output = output
        self._grace = grace
        self._selector = selectors.PollSelector()
        self._selector.register(events.fd, selectors.EVENT_READ, None)
        output.attach(self._selector)

    def add_wakeup(self, fd: int) -> None:
        """Begin a turn when this descriptor is readable, too."""
        self._selector.register(fd, selectors.EVENT_READ, None)

    def watch(self) -> None:
        """Run the loop until all children have ended."""
        while self.alive:
            self._turn(self._timeout())

    # What the users of the loop define

    def on_exits(self, ended: Exits) -> None:
        """Handle the exits of children, which are no longer in `alive`."""

    def after_turn(self, idle: bool) -> None:
        """Do what comes at the end of each turn; ``idle`` when nothing had happened."""

    def forward(self, number: int) -> None:
        """Send a signal that is not a stop to every child."""
        send(list(self.alive), number)

    def terminate(self, number: int) -> None:
        """Ask the children to end, by SIGTERM or SIGINT.

        The child alone gets it, not its process group: a DataLoader that loses its workers raises an
        error in the middle of the rank's own clean end.
        """
        send(list(self.alive), number)

    def kill(self) -> None:
        """Kill the children and what they had started."""
        raise NotImplementedError

    def has_reached_children(self, caught: CaughtSignal) -> bool:
        """Return whether a signal came from a terminal that sent it to the children as well."""
        return False

    def patience(self, number: int) -> float | None:
        """Return the grace time after this signal."""
        return self._grace.failed if number == signal.SIGINT else self._grace.terminated

    # The loop

    def stop(self, number: int | None, grace: float | None) -> None:
        """Ask the children to end, and kill them after the grace time."""
        self.stopped = time.time()
        self._deadline = None if grace is None else time.monotonic() + grace
        if number is not None:
            self.terminate(number)

    def shorten_grace(self, seconds: float) -> None:
        """Kill the children after this time, unless that happens sooner."""
        soon = time.monotonic() + seconds
        self._deadline = soon if self._deadline is None else min(self._deadline, soon)

    def _timeout(self) -> float | None:
        return None if self._deadline is None else max(self._deadline - time.monotonic(), 0)

    def _turn(self, timeout: float | None) -> None:
        """Wait for something to happen and handle it."""
        display = self._output.display
        writers = display.pending_fds()
        self._output.pause(display.is_full())
        for fd in writers:
            self._selector.register(fd, selectors.EVENT_WRITE, None)
        ready = self._selector.select(timeout)
        for fd in writers:
            self._selector.unregister(fd)
        for key, _ in ready:
            if key.data is not None:
                self._output.read(key.data)
        for caught in self._events.read():
            self._handle(caught)
        self.after_turn(idle=not ready)
        if self._deadline is not None and time.monotonic() >= self._deadline:
            self._kill()

    def _handle(self, caught: CaughtSignal) -> None:
        if caught.number == signal.SIGCHLD:
            if ended := self._collect():
                self.on_exits(ended)
        elif caught.number in FORWARDED:
            self.forward(caught.number)
        elif self.stopped is None:
            number = signal.SIGINT if caught.number == signal.SIGINT else signal.SIGTERM
            reached = self.has_reached_children(caught)
            self.stop(None if reached else number, self.patience(caught.number))
        elif caught.number != signal.SIGTERM and time.time() - self.stopped > _SAME_STOP:
            self._kill()  # schedulers repeat TERM, and ranks may be saving

    def _collect(self) -> Exits:
        found = [(self.alive.pop(pid, None), code) for pid, code in self._events.collect()]
        return [(child, code) for child, code in found if child is not None]

    def _kill(self) -> None:
        self._deadline = time.monotonic() + 1
        self.kill()
