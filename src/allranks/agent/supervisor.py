"""The event loop: what the ranks print, how they end, which signals they get.

One rule above all: nothing here may block. Output waits in buffers, deaths and signals arrive on a
descriptor, and every wait has a deadline once the ranks have been told to end.
"""

from __future__ import annotations

import os
import select
import selectors
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from allranks.agent import failures
from allranks.agent.attempt import Attempt, LogFile
from allranks.agent.children import Child
from allranks.agent.console import Console
from allranks.agent.processes import SI_KERNEL, Caught, children, descendants, read_signals, send
from allranks.agent.stream import Lines

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
HANDLED = (*STOPPING, *PASSED_ON, signal.SIGCHLD)

_READ = 1 << 18
# One stop may reach us twice at once: Slurm signals every process of a step, and torchrun then
# passes the signal on as well. Only a later one means that somebody lost patience.
_SAME_STOP = 1.0
_SAME_SIGNAL = 0.2
_LAST_OUTPUT = 5.0
_LOOK = 1.0


class Pipe:
    """One output of one rank."""

    def __init__(self, rank: int, fd: int, error: bool, log: LogFile) -> None:
        self.rank = rank
        self.fd = fd
        self.error = error
        self.log = log
        self.lines = Lines()
        self.tail = failures.Tail()
        self.open = True


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
        self._alive = {child.pid: child for child in ranks}
        self._signals = given.signals
        self._console = console
        self._attempt = attempt
        self._command = list(given.command)
        self._grace = given.grace
        self._keep_terminal = given.keep_terminal
        self._guard = given.guard
        self._peers = given.peers
        self._pass_on = given.pass_on
        self._selector = selectors.PollSelector()
        self._selector.register(given.signals, selectors.EVENT_READ, None)
        self._pipes = {child.pid: self._open(child) for child in ranks}
        self._reading = True
        self._stopped: float | None = None
        self._deadline: float | None = None
        self.failed: list[dict[str, Any]] = []
        self.code = 0

    def run(self) -> int:
        """Watch; returns the exit code of the first rank that failed, else 0."""
        while self._alive:
            self._turn(self._timeout())
        self._end_leftovers()
        for pipes in self._pipes.values():
            for pipe in pipes:
                self._drain(pipe)
                self._finish(pipe)
        self._flush()
        return self.code

    def _open(self, child: Child) -> tuple[Pipe, Pipe]:
        rank = child.order.place.rank
        log = self._attempt.log(rank)
        pipes = Pipe(rank, child.out, False, log), Pipe(rank, child.err, True, log)
        for pipe in pipes:
            self._selector.register(pipe.fd, selectors.EVENT_READ, pipe)
        return pipes

    # The loop

    def _timeout(self) -> float | None:
        if self._deadline is not None:
            return max(self._deadline - time.monotonic(), 0)
        return _LOOK if self._peers else None

    def _look_at_peers(self) -> None:
        if self._peers and self._stopped is None and any(self._peers.glob("rank-*.json")):
            self._stop(signal.SIGTERM, self._grace.failed)

    def _turn(self, timeout: float | None) -> None:
        """Wait for something to happen and deal with it."""
        writers = self._console.waiting()
        self._read_ranks(not self._console.full())
        for fd in writers:
            self._selector.register(fd, selectors.EVENT_WRITE, None)
        ready = self._selector.select(timeout)
        for fd in writers:
            self._selector.unregister(fd)
        for key, _ in ready:
            if key.data is not None:
                self._read(key.data)
        for caught in read_signals(self._signals):
            self._handle(caught)
        self._console.pump()
        if not ready:
            self._look_at_peers()
        if self._deadline is not None and time.monotonic() >= self._deadline:
            self._kill()

    def _read_ranks(self, wanted: bool) -> None:
        if wanted == self._reading:
            return
        self._reading = wanted
        for pipe in (pipe for pipes in self._pipes.values() for pipe in pipes if pipe.open):
            if wanted:
                self._selector.register(pipe.fd, selectors.EVENT_READ, pipe)
            else:
                self._selector.unregister(pipe.fd)

    # Output

    def _read(self, pipe: Pipe) -> bool:
        """Take what a pipe holds; False when there was nothing more."""
        try:
            data = os.read(pipe.fd, _READ)
        except BlockingIOError:
            return False
        if not data:
            self._finish(pipe)
            return False
        if self._console.raw and self._console.shows(pipe.rank):
            self._console.write(pipe.rank, pipe.error, data)
        self._take(pipe, pipe.lines.feed(data))
        return True

    def _take(self, pipe: Pipe, block: bytes) -> None:
        if block:
            now = time.time()
            pipe.log.append(pipe.error, block, now)
            pipe.tail.add(block, now)
        if self._console.shows(pipe.rank) and not self._console.raw:
            if block:
                self._console.write(pipe.rank, pipe.error, block)
            self._console.live(pipe.rank, pipe.lines.visible())

    def _drain(self, pipe: Pipe) -> None:
        """The last words of a rank that has ended; bounded, as its children may still write."""
        for _ in range(64):
            if not pipe.open or not self._read(pipe):
                return

    def _finish(self, pipe: Pipe) -> None:
        if not pipe.open:
            return
        pipe.open = False
        self._take(pipe, pipe.lines.close())
        if self._reading:
            self._selector.unregister(pipe.fd)
        os.close(pipe.fd)

    def _flush(self) -> None:
        until = time.monotonic() + _LAST_OUTPUT
        self._console.pump()
        while self._console.waiting() and time.monotonic() < until:
            self._console.pump(100)

    # Ends

    def _reap(self) -> None:
        """Every process that has ended: ranks, and orphans that became ours."""
        ended = self._collect()
        if self._stopped is None and any(-code in STOPPING for _, code in ended):
            self._wait_for_the_same_signal()
            ended += self._collect()
        for child, _ in ended:
            for pipe in self._pipes[child.pid]:
                self._drain(pipe)
        self._judge([(child, code) for child, code in ended if code != 0])

    def _collect(self) -> list[tuple[Child, int]]:
        ended = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if child := self._alive.pop(pid, None):
                ended.append((child, os.waitstatus_to_exitcode(status)))
        return ended

    def _wait_for_the_same_signal(self) -> None:
        """Slurm signals every process of a step; a rank may get it, and be dead, before we do."""
        until = time.monotonic() + _SAME_SIGNAL
        while self._stopped is None and (left := until - time.monotonic()) > 0:
            select.select([self._signals], [], [], left)
            for caught in read_signals(self._signals):
                if caught.number != signal.SIGCHLD:  # the caller looks for those itself
                    self._handle(caught)

    def _judge(self, ended: list[tuple[Child, int]]) -> None:
        """Ranks that ended badly; of several at once the one with the earliest error first."""
        found = []
        for child, code in ended:
            out, err = self._pipes[child.pid]
            when, text = failures.describe(out.tail, err.tail, code == 1, time.time())
            found.append((when, child, code, text))
        for when, child, code, text in sorted(found, key=lambda item: item[0]):
            status = (code, None) if code > 0 else (128 - code, -code)
            # A rank that ended because we told it to is no failure.
            if self._stopped is None or (code > 0 and when < self._stopped):
                facts = failures.record(
                    child.order.place, child.pid, status, self._command, (when, text)
                )
                self.failed.append(facts)
                self._attempt.failed(child.order.place.rank, facts)
            self.code = self.code or status[0]
        if ended and self._stopped is None:
            self._stop(signal.SIGTERM, self._grace.failed)
        elif any(code > 0 and code != 128 + signal.SIGTERM for _, code in ended):
            # It failed while all were leaving: the others wait for it in vain.
            self._hasten()

    def _hasten(self) -> None:
        soon = time.monotonic() + self._grace.failed
        self._deadline = soon if self._deadline is None else min(self._deadline, soon)

    def _end_leftovers(self) -> None:
        """What the ranks had started and left behind: workers, servers, a shell's child."""
        until = time.monotonic() + self._grace.failed
        told = False
        while left := self._leftovers():
            if time.monotonic() >= until:
                send(left, signal.SIGKILL)
            elif not told:
                send(left, signal.SIGTERM)
                told = True
            self._turn(0.05)

    def _leftovers(self) -> list[int]:
        # Orphans become our children, so no children means no descendants. That spares the normal
        # end a walk through all of /proc, where a large node lists thousands of kernel threads.
        if children() == [self._guard]:
            return []
        return [pid for pid in descendants(os.getpid()) if pid != self._guard]

    # Signals

    def _handle(self, caught: Caught) -> None:
        if caught.number == signal.SIGCHLD:
            self._reap()
        elif caught.number in PASSED_ON:
            if self._pass_on:
                send(self._alive, caught.number)
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
        failed = self._attempt.failures is not None and any(
            self._attempt.failures.glob("rank-*.json")
        )
        return self._grace.failed if failed or number == signal.SIGINT else self._grace.told

    def _stop(self, number: int | None, grace: float | None) -> None:
        """Tell the ranks to end, and give them the grace time for it."""
        self._stopped = time.time()
        self._deadline = None if grace is None else time.monotonic() + grace
        if number == signal.SIGINT and not self._keep_terminal:
            # As a terminal does it: the whole group, and each rank leads one. Workers count on it,
            # and Python waits for them at the end of the rank.
            send([-pid for pid in self._alive], number)
        elif number is not None:
            # The rank alone: a DataLoader that loses its workers raises an error in the middle of
            # the rank's own clean end.
            send(self._alive, number)

    def _kill(self) -> None:
        """Nobody may ignore this. What a rank had started dies with it."""
        self._deadline = time.monotonic() + 1
        send(self._leftovers(), signal.SIGKILL)


def _as_sent(number: int) -> int:
    return signal.SIGINT if number == signal.SIGINT else signal.SIGTERM
