"""Read what the ranks print, without waiting: into their logs, and to a display.

All work is done on blocks of whole lines, never line by line: a rank may print a hundred thousand
lines a second, and the supervisor must not slow it down.
"""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from allranks.runtime.agent.attempt_files import AttemptFiles, RankLog
from allranks.runtime.agent.console import Display
from allranks.runtime.agent.failures import Tail

LONGEST_LINE = 1 << 20
"""A longer line is cut, so that a rank that prints no newline cannot fill our memory."""
_READ = 1 << 18
_LAST_OUTPUT = 5.0
_PIPE_CAPACITY = 1 << 16


class Child(NamedTuple):
    """A supervised process: the number of its rank, and the pipes with its output, if any."""

    pid: int
    rank: int = 0
    out: int = -1
    err: int = -1


class LineBuffer:
    """Collects the bytes of one pipe and returns the lines that are complete."""

    def __init__(self) -> None:
        self.pending = b""
        """The start of a line whose end has not come yet."""

    def feed(self, data: bytes) -> bytes:
        """Return the lines that ``data`` completes, each with its newline."""
        end = data.rfind(b"\n") + 1
        block = self.pending + data[:end] if end else b""
        self.pending = data[end:] if end else self.pending + data
        if b"\r" in self.pending:
            self.pending = _last_redraw(self.pending)
        if len(self.pending) > LONGEST_LINE:
            block, self.pending = block + self.pending + b"\n", b""
        return _clean(block)

    def close(self) -> bytes:
        """Return what is left at the end, as a last line."""
        block, self.pending = self.pending, b""
        return _clean(block + b"\n") if block else b""

    def visible(self) -> bytes:
        """Return the unfinished line as a terminal would show it: a progress bar, a prompt."""
        return last_state(self.pending)


def last_state(line: bytes) -> bytes:
    """Return the last state of a line that was redrawn with carriage returns."""
    if b"\r" not in line:
        return line
    for part in reversed(line.split(b"\r")):
        if part.strip():
            return part
    return b""


def _last_redraw(pending: bytes) -> bytes:
    """Drop earlier states, so that a progress bar that runs for hours does not pile up."""
    kept = last_state(pending)
    # A carriage return at the end means: the next text replaces this one.
    return kept + b"\r" if pending.endswith(b"\r") else b"\r" + kept


def _clean(block: bytes) -> bytes:
    if b"\r" in block:
        block = b"\n".join([last_state(line) for line in block.split(b"\n")])
    if not block.isascii():
        # Whole lines only get here, so a character cut by a pipe's chunk is whole again.
        block = block.decode("utf-8", "replace").encode()
    return block


class RankPipe:
    """One output of one rank."""

    def __init__(self, rank: int, fd: int, error: bool, log: RankLog) -> None:
        self.rank = rank
        self.fd = fd
        self.error = error
        self.log = log
        self.lines = LineBuffer()
        self.tail = Tail()
        self.open = True


class RankOutput:
    """The pipes of all children of a supervisor."""

    def __init__(self, children: Iterable[Child], display: Display, files: AttemptFiles) -> None:
        self.display = display
        self._reading = True
        self._pipes = {
            child.pid: self._open(child, files.log(child.rank))
            for child in children
            if child.out >= 0
        }

    def _open(self, child: Child, log: RankLog) -> tuple[RankPipe, RankPipe]:
        return (
            RankPipe(child.rank, child.out, False, log),
            RankPipe(child.rank, child.err, True, log),
        )

    def attach(self, selector: selectors.BaseSelector) -> None:
        """Register the pipes with a supervisor's selector."""
        self._selector = selector
        self._register(self._open_pipes())

    def pause(self, paused: bool) -> None:
        """Stop or resume reading: a display that takes nothing must slow the ranks down."""
        if paused is not self._reading:
            return
        self._reading = not paused
        if paused:
            for pipe in self._open_pipes():
                self._selector.unregister(pipe.fd)
        else:
            self._register(self._open_pipes())

    def read(self, pipe: RankPipe) -> bool:
        """Take what a pipe holds; False when there was nothing more."""
        try:
            data = os.read(pipe.fd, _READ)
        except BlockingIOError:
            return False
        if not data:
            self._finish(pipe)
            return False
        if self.display.raw and self.display.shows(pipe.rank):
            self.display.write(pipe.rank, pipe.error, data)
        self._take(pipe, pipe.lines.feed(data))
        return True

    def drain(self, pid: int) -> None:
        """Read the last output of a rank that has ended; bounded, as its children may still write."""
        for pipe in self._pipes[pid]:
            for _ in range(64):
                if not pipe.open or not self.read(pipe):
                    break

    def tails(self, pid: int) -> tuple[Tail, Tail]:
        """Return the last lines of a rank's stdout and stderr."""
        out, err = self._pipes[pid]
        return out.tail, err.tail

    def close(self) -> None:
        """Read what is left after all ranks have ended, and show it while the display takes it."""
        for pid, pipes in self._pipes.items():
            self.drain(pid)
            for pipe in pipes:
                self._finish(pipe)
        until = time.monotonic() + _LAST_OUTPUT
        self.display.pump()
        while self.display.pending_fds() and time.monotonic() < until:
            self.display.pump(100)

    def _open_pipes(self) -> list[RankPipe]:
        return [pipe for pipes in self._pipes.values() for pipe in pipes if pipe.open]

    def _register(self, pipes: Iterable[RankPipe]) -> None:
        for pipe in pipes:
            self._selector.register(pipe.fd, selectors.EVENT_READ, pipe)

    def _take(self, pipe: RankPipe, block: bytes) -> None:
        if block:
            now = time.time()
            pipe.log.append(pipe.error, block, now)
            pipe.tail.add(block, now)
        if self.display.shows(pipe.rank) and not self.display.raw:
            if block:
                self.display.write(pipe.rank, pipe.error, block)
            self.display.draw_live(pipe.rank, pipe.lines.visible())

    def _finish(self, pipe: RankPipe) -> None:
        if not pipe.open:
            return
        pipe.open = False
        self._take(pipe, pipe.lines.close())
        if self._reading:
            self._selector.unregister(pipe.fd)
        os.close(pipe.fd)


class ThreadMessages:
    """Lines from other threads for the display, which only the event loop may write to.

    The loop may sleep as long as the ranks print nothing: a line in a pipe wakes it.
    """

    def __init__(self) -> None:
        self.fd, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        """Readable while there are lines."""

    def add(self, text: str) -> None:
        """Add a line without waiting: what a full pipe does not take is lost."""
        with suppress(BlockingIOError):
            os.write(self._writer, text.encode("utf-8", "replace") + b"\n")

    def read(self) -> list[str]:
        """Return the lines since the last call."""
        try:
            return os.read(self.fd, _PIPE_CAPACITY).decode("utf-8", "replace").splitlines()
        except BlockingIOError:
            return []
