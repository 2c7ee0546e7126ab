"""The screen: only lines that changed are written, so that it is calm over a slow line."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

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
        """Leave the user's own lines aside, to be there again afterwards."""
        self._entered = True
        self._write(_ENTER)
        self._shown = []

    def leave(self) -> None:
        """Back to what was there before."""
        if not self._entered:
            return
        self._entered = False
        with contextlib.suppress(OSError):  # the terminal is gone: its window was closed
            self._write(_LEAVE)

    def size(self) -> tuple[int, int]:
        """Columns and lines, as they are now."""
        try:
            found = os.get_terminal_size(self._descriptor)
        except OSError:
            return 80, 24
        return found.columns or 80, found.lines or 24

    def clear(self) -> None:
        """After a resize nothing that stands there is believed."""
        self._shown = []
        self._write("\x1b[2J")

    def draw(self, lines: Sequence[Text]) -> None:
        """Show these lines, from the top."""
        width, _ = self.size()
        # At the right edge the cursor stays on the last character: erasing the rest would take it.
        wanted = [
            rendered(self._console, line) + ("\x1b[0m\x1b[K" if line.cell_len < width else "")
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


def rendered(console: Console, line: Text) -> str:
    """A line with the colours that this terminal takes; none with NO_COLOR."""
    with console.capture() as captured:
        console.print(line, end="", soft_wrap=True)
    return captured.get()
