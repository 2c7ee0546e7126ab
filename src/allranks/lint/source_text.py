"""Text to lint, and places in it.

Everything that is found points into a file that the user has, even where the words were read out of a
string that another shell runs: each character of such a fragment remembers where it was written.
"""

from __future__ import annotations

import bisect
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

_FOREIGN = re.compile(r"[^\x09\x0a\x20-\x7e]")


class SourceFile:
    """One text: a file, or standard input."""

    def __init__(self, name: str, text: str, path: Path | None = None) -> None:
        self.name = name
        self.text = text
        self.path = path

    @cached_property
    def plain(self) -> bytes:
        """The text for the parser: one byte for each character, so that its places are ours."""
        return _FOREIGN.sub(lambda match: " " if match[0] == "\r" else "x", self.text).encode()

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *(match.end() for match in re.finditer("\n", self.text))]

    def span(self, start: int, end: int) -> Span:
        """A place in this text."""
        return Span(self, start, max(start, end))

    def line_of(self, offset: int) -> int:
        """The number of the line, from 1."""
        return bisect.bisect_right(self._starts, offset)

    def start_of(self, line: int) -> int:
        """The offset at which a line begins."""
        return self._starts[min(max(line, 1), len(self._starts)) - 1]

    def line(self, number: int) -> str:
        """The text of a line, without its end."""
        start = self.start_of(number)
        end = self.text.find("\n", start)
        return self.text[start : end if end >= 0 else len(self.text)].rstrip("\r")

    @property
    def lines(self) -> int:
        """How many lines there are."""
        return len(self._starts)

    def hole(self, character: str) -> object | None:
        """What another shell puts in place of a character; a file has no such thing."""
        return None


@dataclass(frozen=True, slots=True)
class Span:
    """A place in a file, from ``start`` up to ``end``."""

    source: SourceFile
    start: int
    end: int

    @property
    def line(self) -> int:
        """The line it begins on, from 1."""
        return self.source.line_of(self.start)

    @property
    def column(self) -> int:
        """The column it begins at, from 1."""
        return self.start - self.source.start_of(self.line) + 1

    @property
    def last_line(self) -> int:
        """The line it ends on."""
        return self.source.line_of(max(self.start, self.end - 1))

    @property
    def text(self) -> str:
        """What is written there."""
        return self.source.text[self.start : self.end]

    def to(self, other: Span) -> Span:
        """From here to the end of another place of the same file."""
        if other.source is not self.source or other.end < self.start:
            return self
        return Span(self.source, self.start, other.end)


_HOLES = 0xF0000  # a private plane of Unicode: no script holds these by itself


class Fragment(SourceFile):
    """Text that a shell will read after another one has expanded it: the string of ``bash -c``."""

    def __init__(self, name: str) -> None:
        super().__init__(name, "")
        self._characters: list[str] = []
        self._origins: list[Span] = []
        self._holes: dict[str, object] = {}

    def add(self, text: str, span: Span) -> None:
        """Text that is written at ``span``, character for character where the lengths agree."""
        exact = len(text) == span.end - span.start
        for index, character in enumerate(text):
            self._characters.append(character)
            place = Span(span.source, span.start + index, span.start + index + 1) if exact else span
            self._origins.append(place)

    def add_hole(self, content: object, span: Span) -> None:
        """Something that the outer shell puts there and that is not known."""
        character = chr(_HOLES + len(self._holes))
        self._holes[character] = content
        self._characters.append(character)
        self._origins.append(span)

    def done(self) -> Fragment:
        """The fragment, complete."""
        self.text = "".join(self._characters)
        return self

    def hole(self, character: str) -> object | None:
        """What the outer shell puts in place of this character."""
        return self._holes.get(character)

    @property
    def has_holes(self) -> bool:
        """Whether some of the text is not known."""
        return bool(self._holes)

    def span(self, start: int, end: int) -> Span:
        """A place of the fragment as a place of the file it was written in."""
        if not self._origins:
            return Span(self, 0, 0)
        last = len(self._origins) - 1
        first = self._origins[min(start, last)]
        final = self._origins[min(max(start, end - 1), last)]
        return first.to(final)
