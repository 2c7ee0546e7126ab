"""What the ranks print: read without waiting, kept in their logs, shown."""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Iterable

from allranks.runtime.agent import failures
from allranks.runtime.agent.attempt_files import Attempt, LogFile
from allranks.runtime.agent.children import Child
from allranks.runtime.agent.console import Console
from allranks.runtime.agent.line_splitter import Lines

_READ = 1 << 18
_LAST_OUTPUT = 5.0


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


class Output:
    """The pipes of all ranks of one node, on the way to their logs and the console."""

    def __init__(
        self,
        ranks: Iterable[Child],
        console: Console,
        attempt: Attempt,
        selector: selectors.BaseSelector,
    ) -> None:
        self._console = console
        self._selector = selector
        self._reading = True
        self._pipes = {child.pid: self._open(child, attempt) for child in ranks}

    def _open(self, child: Child, attempt: Attempt) -> tuple[Pipe, Pipe]:
        rank = child.order.place.rank
        log = attempt.log(rank)
        pipes = Pipe(rank, child.out, False, log), Pipe(rank, child.err, True, log)
        for pipe in pipes:
            self._selector.register(pipe.fd, selectors.EVENT_READ, pipe)
        return pipes

    def wanted(self, wanted: bool) -> None:
        """Whether to go on reading: a console that takes nothing must hold the ranks back."""
        if wanted == self._reading:
            return
        self._reading = wanted
        for pipe in (pipe for pipes in self._pipes.values() for pipe in pipes if pipe.open):
            if wanted:
                self._selector.register(pipe.fd, selectors.EVENT_READ, pipe)
            else:
                self._selector.unregister(pipe.fd)

    def read(self, pipe: Pipe) -> bool:
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

    def drain(self, pid: int) -> None:
        """The last words of a rank that has ended; bounded, as its children may still write."""
        for pipe in self._pipes[pid]:
            for _ in range(64):
                if not pipe.open or not self.read(pipe):
                    break

    def tails(self, pid: int) -> tuple[failures.Tail, failures.Tail]:
        """What a rank said last on its two outputs."""
        out, err = self._pipes[pid]
        return out.tail, err.tail

    def close(self) -> None:
        """All ranks have ended: read what is left, and show it while the console takes it."""
        for pid, pipes in self._pipes.items():
            self.drain(pid)
            for pipe in pipes:
                self._finish(pipe)
        until = time.monotonic() + _LAST_OUTPUT
        self._console.pump()
        while self._console.waiting() and time.monotonic() < until:
            self._console.pump(100)

    def _take(self, pipe: Pipe, block: bytes) -> None:
        if block:
            now = time.time()
            pipe.log.append(pipe.error, block, now)
            pipe.tail.add(block, now)
        if self._console.shows(pipe.rank) and not self._console.raw:
            if block:
                self._console.write(pipe.rank, pipe.error, block)
            self._console.live(pipe.rank, pipe.lines.visible())

    def _finish(self, pipe: Pipe) -> None:
        if not pipe.open:
            return
        pipe.open = False
        self._take(pipe, pipe.lines.close())
        if self._reading:
            self._selector.unregister(pipe.fd)
        os.close(pipe.fd)
