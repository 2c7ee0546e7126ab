"""The keyboard: one key at a time, without echo, and the terminal as it was afterwards."""

from __future__ import annotations

import contextlib
import os
import re
import termios
from typing import Any

_SEQUENCES = {
    "A": "up", "B": "down", "H": "home", "F": "end",
    "1~": "home", "7~": "home", "4~": "end", "8~": "end", "5~": "pageup", "6~": "pagedown",
}  # fmt: skip
_ESCAPE = re.compile(r"\x1b(?:\[([0-9;]*[A-Za-z~])|O([A-Z]))")
_UNFINISHED = re.compile(r"\x1b(?:\[[0-9;]*|O)?$")


class KeyReader:
    """Bytes → names of keys. A sequence cut in two by a slow line is kept until its rest comes, or
    until it is given up.
    """

    def __init__(self) -> None:
        self._rest = ""

    def feed(self, data: bytes) -> list[str]:
        """The keys in what was read: ``q``, ``up``, ``pagedown``; unknown sequences are dropped."""
        text = self._rest + data.decode("utf-8", "replace")
        # A lone Escape is a key when another one follows it, else perhaps the head of a sequence.
        unfinished = _UNFINISHED.search(text)
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
        """Whether what was read last may go on."""
        return bool(self._rest)

    def give_up(self) -> list[str]:
        """No rest has come: an Escape alone is a key, any other beginning is none."""
        rest, self._rest = self._rest, ""
        return ["escape"] if rest == "\x1b" else []


class Keyboard:
    """A terminal that gives each key at once. Ctrl-C and Ctrl-Z stay signals."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.reader = KeyReader()
        self._before: list[Any] | None = None

    def enter(self) -> None:
        """Take the terminal."""
        if self._before is None:
            self._before = termios.tcgetattr(self.descriptor)
        mode = termios.tcgetattr(self.descriptor)
        mode[3] &= ~(termios.ICANON | termios.ECHO)
        mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
        termios.tcsetattr(self.descriptor, termios.TCSADRAIN, mode)

    def leave(self) -> None:
        """Give it back as it was. What was typed and not read is thrown away with it."""
        if self._before is None:
            return
        before, self._before = self._before, None
        with contextlib.suppress(termios.error):  # the terminal is gone: its window was closed
            termios.tcsetattr(self.descriptor, termios.TCSAFLUSH, before)

    def pressed(self) -> list[str]:
        """The keys since the last look; ``q`` when the terminal has gone."""
        try:
            data = os.read(self.descriptor, 1024)
        except OSError:
            data = b""
        return self.reader.feed(data) if data else ["q"]
