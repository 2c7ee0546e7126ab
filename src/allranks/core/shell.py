"""Quote and join the words of a shell command.

A plain ``str`` is data: it reaches the program exactly as it is, whatever it holds. ``Raw`` is shell
text that we wrote ourselves (``"$MASTER_ADDR"``), rendered as it stands. Nothing that a user typed
ever becomes ``Raw``.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence


class Raw(str):
    """Shell text to render verbatim, with its own quotes."""

    __slots__ = ()


Word = str
"""A ``str`` (data, quoted when rendered) or a ``Raw`` (shell text)."""

Words = Sequence[Word]


def quote(word: Word) -> str:
    """Return the word quoted for a script."""
    if isinstance(word, Raw):
        return str(word)
    if "\0" in word:
        raise ValueError(f"A command-line word cannot hold a NUL byte: {word!r}")
    return shlex.quote(word)


def join(words: Iterable[Word]) -> str:
    """Return the command on one line."""
    return " ".join(quote(word) for word in words)


def fold(groups: Iterable[Iterable[Word]], indent: str = "  ") -> str:
    """Return the command with one group of words per line, continued by backslashes."""
    lines = [text for group in groups if (text := join(group))]
    return f" \\\n{indent}".join(lines)
