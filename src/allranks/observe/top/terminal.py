"""The terminal as a whole: taken, given back whatever happens, and left aside by Ctrl-Z."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any

from rich.console import Console
from rich.text import Text

from allranks.observe.top.keys import Keyboard
from allranks.observe.top.screen import Screen

_NOTED = (signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)
_REST = 0.1
"""Seconds in which the rest of a key comes, over a slow line too."""
_ENDING = (signal.SIGTERM, signal.SIGHUP)


class Terminal:
    """The screen, the keyboard and the signals of one terminal, as a context."""

    def __init__(self, console: Console) -> None:
        out = sys.__stdout__ or sys.stdout
        self.screen = Screen(console, out.fileno(), console.encoding)
        here = sys.stdin is not None and sys.stdin.isatty()
        self.keyboard = Keyboard(sys.stdin.fileno()) if here else None
        self._noted: set[int] = set()
        self._handlers: dict[int, Any] = {}
        self._pipe: tuple[int, int] = (-1, -1)
        self._wakeup = -1

    def __enter__(self) -> Terminal:
        # Never closed: a thread may still wake us after the end, and the number would be another file's.
        self._pipe = os.pipe()
        for end in self._pipe:
            os.set_blocking(end, False)
        self._wakeup = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        try:
            for number in _NOTED:
                self._handlers[number] = signal.signal(number, self._note)
            for number in _ENDING:
                self._handlers[number] = signal.signal(number, _end)
            self._take()
        except BaseException:
            self._restore()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._restore()

    def wake(self) -> None:
        """End a `wait`, from any thread: there is something new to draw."""
        with contextlib.suppress(BlockingIOError):  # full: it is awake already
            os.write(self._pipe[1], b"\0")

    def wait(self) -> list[str]:
        """Sleep until a key, a signal or `wake`; the keys."""
        watched = [self._pipe[0], *([self.keyboard.descriptor] if self.keyboard else [])]
        begun = self.keyboard is not None and self.keyboard.reader.unfinished
        ready, _, _ = select.select(watched, [], [], _REST if begun else None)
        if not ready and self.keyboard:
            return self.keyboard.reader.give_up()
        if self._pipe[0] in ready:
            self._drain()
        self._follow_signals()
        if self.keyboard and self.keyboard.descriptor in ready:
            return self.keyboard.pressed()
        return []

    def draw(self, lines: Sequence[Text]) -> None:
        """Show these lines."""
        self.screen.draw(lines)

    def _take(self) -> None:
        if self.keyboard:
            self.keyboard.enter()
        self.screen.enter()

    def _give_back(self) -> None:
        self.screen.leave()
        if self.keyboard:
            self.keyboard.leave()

    def _restore(self) -> None:
        """Not to be ended half-way by a second Ctrl-C."""
        signals = {signal.SIGINT, signal.SIGTSTP, *_ENDING}
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        try:
            self._give_back()
            for number, handler in self._handlers.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
            signal.set_wakeup_fd(self._wakeup)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _note(self, number: int, _: FrameType | None) -> None:
        self._noted.add(number)

    def _follow_signals(self) -> None:
        noted, self._noted = self._noted, set()
        if signal.SIGTSTP in noted:
            self._suspend()
        elif signal.SIGCONT in noted:
            self._take()  # stopped by a signal that cannot be caught: the shell has used the terminal
        elif signal.SIGWINCH in noted:
            self.screen.clear()

    def _suspend(self) -> None:
        """Stop as the shell expects it: with the terminal as it was before us."""
        self._give_back()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        # Here it goes on after fg.
        signal.signal(signal.SIGTSTP, self._note)
        self._noted.discard(signal.SIGCONT)
        self._take()

    def _drain(self) -> None:
        try:
            while os.read(self._pipe[0], 4096):
                pass
        except BlockingIOError:
            pass  # empty


def _end(number: int, _: FrameType | None) -> None:
    """As an exception, so that the terminal is given back on the way out."""
    raise SystemExit(128 + number)
