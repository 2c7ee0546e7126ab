"""Bytes of a pipe → complete lines.

All work is done on blocks of whole lines, never line by line: a rank may print a hundred thousand
lines a second, and the agent must not be what slows it down.
"""

from __future__ import annotations

LONGEST = 1 << 20
"""A line longer than this is cut, so that a rank that prints no newline cannot fill our memory."""


class Lines:
    """Collects what one pipe brought and hands out the lines that are complete."""

    def __init__(self) -> None:
        self.pending = b""
        """The start of a line whose end has not come yet."""

    def feed(self, data: bytes) -> bytes:
        """The lines that ``data`` completes, each with its newline."""
        end = data.rfind(b"\n") + 1
        block = self.pending + data[:end] if end else b""
        self.pending = data[end:] if end else self.pending + data
        if b"\r" in self.pending:
            self.pending = _latest(self.pending)
        if len(self.pending) > LONGEST:
            block, self.pending = block + self.pending + b"\n", b""
        return _clean(block)

    def close(self) -> bytes:
        """What is left at the end, as a last line."""
        block, self.pending = self.pending, b""
        return _clean(block + b"\n") if block else b""

    def visible(self) -> bytes:
        """The unfinished line as a terminal would show it: a progress bar, a prompt."""
        return settle(self.pending)


def settle(line: bytes) -> bytes:
    """The last state of a line that was redrawn with carriage returns."""
    if b"\r" not in line:
        return line
    for part in reversed(line.split(b"\r")):
        if part.strip():
            return part
    return b""


def _latest(pending: bytes) -> bytes:
    """The last state alone, so that a bar that runs for hours does not pile up."""
    kept = settle(pending)
    # A carriage return at the end means: the next text replaces this one.
    return kept + b"\r" if pending.endswith(b"\r") else b"\r" + kept


def _clean(block: bytes) -> bytes:
    if b"\r" in block:
        block = b"\n".join([settle(line) for line in block.split(b"\n")])
    if not block.isascii():
        # Whole lines only get here, so a character cut by a pipe's chunk is whole again.
        block = block.decode("utf-8", "replace").encode()
    return block
