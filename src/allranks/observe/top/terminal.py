"""The terminal of the live view: its keys, its screen, and the signals that suspend or end it.

Only lines that changed are written, so that a slow connection is not flooded.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import sys
import termios
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any

from rich.console import Console
from rich.text import Text

_SEQUENCES = {
    "A": "up", "B": "down", "H": "home", "F": "end",
    "1~": "home", "7~": "home", "4~": "end", "8~": "end", "5~": "pageup", "6~": "pagedown",
}  # fmt: skip
_ESCAPE = re.compile(r"\x1b(?:\[([0-9;]*[A-Za-z~])|O([A-Z]))")
_INCOMPLETE = re.compile(r"\x1b(?:\[[0-9;]*|O)?$")


class KeyReader:
    """Bytes → names of keys. A sequence cut in two by a slow line is kept until its rest comes, or
    until it is given up.
    """

    def __init__(self) -> None:
        self._rest = ""

    def feed(self, data: bytes) -> list[str]:
        """Return the keys in the data: ``q``, ``up``, ``pagedown``; unknown sequences are dropped."""
        text = self._rest + data.decode("utf-8", "replace")
        # A lone Escape is a key when another one follows it, else perhaps the head of a sequence.
        unfinished = _INCOMPLETE.search(text)
        self._rest = unfinished[0] if unfinished else ""
        text = text[: len(text) - len(self._rest)]
        keys: list[str] = []
        while text:
            if match := _ESCAPE.match(text):
                keys += [_SEQUENCES[name] for name in match.groups() if name in _SEQUENCES]
                text = text[match.end() :]
            else:
                keys += [text[0]] if text[0].isprintable() else []
                text = text[1:]
        return keys

    @property
    def unfinished(self) -> bool:
        """Return whether the last data may continue."""
        return bool(self._rest)

    def flush(self) -> list[str]:
        """Give up waiting for the rest: an Escape alone is a key, any other beginning is none."""
        rest, self._rest = self._rest, ""
        return ["escape"] if rest == "\x1b" else []


class Keyboard:
    """A terminal in single-key mode; Ctrl-C and Ctrl-Z remain signals."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.reader = KeyReader()
        self._before: list[Any] | None = None

    def enter(self) -> None:
        """Put the terminal into single-key mode."""
        if self._before is None:
            self._before = termios.tcgetattr(self.descriptor)
        mode = termios.tcgetattr(self.descriptor)
        mode[3] &= ~(termios.ICANON | termios.ECHO)
        mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
        termios.tcsetattr(self.descriptor, termios.TCSADRAIN, mode)

    def leave(self) -> None:
        """Restore the terminal; input that was not read is discarded."""
        if self._before is None:
            return
        before, self._before = self._before, None
        with contextlib.suppress(termios.error):  # the terminal is gone: its window was closed
            termios.tcsetattr(self.descriptor, termios.TCSAFLUSH, before)

    def read_keys(self) -> list[str]:
        """Return the keys since the last call; ``q`` when the terminal is gone."""
        try:
            data = os.read(self.descriptor, 1024)
        except OSError:
            data = b""
        return self.reader.feed(data) if data else ["q"]


# The alternative screen, no cursor, no wrapping at the right edge: a wide character that the
# terminal measures otherwise must not shift all lines below it.
_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
_LEAVE = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"


class Screen:
    """Draws frames on one terminal."""

    def __init__(self, console: Console, descriptor: int, encoding: str) -> None:
        self._console = console
        self._descriptor = descriptor
        self._encoding = encoding
        self._shown: list[str] = []
        self._entered = False

    def enter(self) -> None:
        """Switch to the alternative screen, which keeps the user's lines."""
        self._entered = True
        self._write(_ENTER)
        self._shown = []

    def leave(self) -> None:
        """Switch back to the normal screen."""
        if not self._entered:
            return
        self._entered = False
        with contextlib.suppress(OSError):  # the terminal is gone: its window was closed
            self._write(_LEAVE)

    def size(self) -> tuple[int, int]:
        """Return the current columns and lines."""
        try:
            found = os.get_terminal_size(self._descriptor)
        except OSError:
            return 80, 24
        return found.columns or 80, found.lines or 24

    def clear(self) -> None:
        """Clear the screen after a resize, when its content is undefined."""
        self._shown = []
        self._write("\x1b[2J")

    def draw(self, lines: Sequence[Text]) -> None:
        """Show these lines, from the top."""
        width, _ = self.size()
        # At the right edge the cursor stays on the last character: erasing the rest would take it.
        wanted = [
            render_line(self._console, line) + ("\x1b[0m\x1b[K" if line.cell_len < width else "")
            for line in lines
        ]
        missing = ["\x1b[K"] * (len(self._shown) - len(wanted))
        before = self._shown + [""] * (len(wanted) - len(self._shown))
        changed = [
            f"\x1b[{row};1H\x1b[0m{line}"
            for row, (line, old) in enumerate(zip(wanted + missing, before, strict=True), start=1)
            if line != old
        ]
        self._shown = wanted
        if changed:
            self._write("".join(changed))

    def _write(self, text: str) -> None:
        data = text.encode(self._encoding, "replace")
        while data:
            data = data[os.write(self._descriptor, data) :]


def render_line(console: Console, line: Text) -> str:
    """Render a line with the colours that this terminal supports; none with NO_COLOR."""
    with console.capture() as captured:
        console.print(line, end="", soft_wrap=True)
    return captured.get()


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
            self._acquire()
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
        """Sleep until a key, a signal or `wake`; return the keys."""
        watched = [self._pipe[0], *([self.keyboard.descriptor] if self.keyboard else [])]
        begun = self.keyboard is not None and self.keyboard.reader.unfinished
        ready, _, _ = select.select(watched, [], [], _REST if begun else None)
        if not ready and self.keyboard:
            return self.keyboard.reader.flush()
        if self._pipe[0] in ready:
            self._drain()
        self._follow_signals()
        if self.keyboard and self.keyboard.descriptor in ready:
            return self.keyboard.read_keys()
        return []

    def draw(self, lines: Sequence[Text]) -> None:
        """Show these lines."""
        self.screen.draw(lines)

    def _acquire(self) -> None:
        if self.keyboard:
            self.keyboard.enter()
        self.screen.enter()

    def _release(self) -> None:
        self.screen.leave()
        if self.keyboard:
            self.keyboard.leave()

    def _restore(self) -> None:
        """Restore everything, uninterrupted by a second Ctrl-C."""
        signals = {signal.SIGINT, signal.SIGTSTP, *_ENDING}
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        try:
            self._release()
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
            self._acquire()  # stopped by a signal that cannot be caught: the shell has used the terminal
        elif signal.SIGWINCH in noted:
            self.screen.clear()

    def _suspend(self) -> None:
        """Stop as the shell expects it, with the terminal restored."""
        self._release()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        # It continues here after fg.
        signal.signal(signal.SIGTSTP, self._note)
        self._noted.discard(signal.SIGCONT)
        self._acquire()

    def _drain(self) -> None:
        try:
            while os.read(self._pipe[0], 4096):
                pass
        except BlockingIOError:
            pass  # empty


def _end(number: int, _: FrameType | None) -> None:
    """Raise SystemExit, so that the terminal is restored on the way out."""
    raise SystemExit(128 + number)
