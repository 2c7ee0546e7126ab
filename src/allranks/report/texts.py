"""Texts of others (names, commands, logs) without what moves a cursor, colours or reverses."""

from __future__ import annotations

from allranks.wording import clean


def one_line(text: str) -> str:
    """Fit for a terminal, a heading or a cell of a table."""
    return clean(" ".join(text.split()))


def lines(text: str) -> str:
    """The same in its lines."""
    return "\n".join(map(clean, text.split("\n")))
