"""Lines that fit: what matters less leaves first, nothing is ever wrapped by the terminal."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from rich.cells import cell_len, chop_cells
from rich.text import Text

_WORD = re.compile(r"\s*\S+")
GAP = 2
"""Spaces between two pieces or columns."""


@dataclass(frozen=True)
class LinePiece:
    """A part of a line; the highest ``rank`` leaves first where there is no room."""

    text: Text
    rank: int = 0

    @classmethod
    def of(cls, text: str, style: str = "", rank: int = 0) -> LinePiece:
        """From a string."""
        return cls(Text(text, style), rank)


def fit(pieces: Sequence[LinePiece], width: int, more: str = "…") -> Text:
    """As many of the pieces as have room, in their order."""
    kept = [piece for piece in pieces if piece.text.cell_len]
    while len(kept) > 1 and _length([piece.text for piece in kept]) > width:
        least = max(piece.rank for piece in kept)
        place = max(n for n, piece in enumerate(kept) if piece.rank == least)
        del kept[place]
    return cut(Text(" " * GAP).join(piece.text for piece in kept), width, more)


def cut(text: Text, width: int, more: str = "…") -> Text:
    """At most ``width`` cells, the last one showing that there was more."""
    if text.cell_len <= width:
        return text
    text = text.copy()
    text.truncate(max(width - len(more), 0))
    return text.append(more[: max(width, 0)])


def wrapped(text: str, width: int, most: int, style: str = "", more: str = "…") -> list[Text]:
    """A sentence on at most ``most`` lines."""
    lines = list(_folded(text, max(width, 1)))
    kept = [cut(Text(line, style), width, more) for line in lines[:most]]
    if len(lines) > most and kept:
        kept[-1] = cut(Text(f"{lines[most - 1]} {lines[most]}", style), width, more)
    return kept


def _folded(text: str, width: int) -> Iterator[str]:
    """Between words where there is a space, counted in cells: a wide character takes two of them."""
    line = ""
    for word in _WORD.findall(text):
        if line and cell_len(line + word) > width:
            yield line
            line, word = "", word.lstrip()
        *whole, line = chop_cells(line + word, width)
        yield from whole
    if line:
        yield line


@dataclass(frozen=True)
class Column:
    """One column of a table: a title and a cell per row."""

    title: str
    cells: Sequence[str | Text]
    rank: int = 0
    """The highest leaves first where there is no room."""
    right: bool = True
    draw: Callable[[int, int], Text] | None = field(default=None, compare=False)
    """(row, width) → a cell as wide as there is room: the one column that stretches."""
    least: int = 0
    most: int = 0

    @cached_property
    def width(self) -> int:
        """What its widest cell needs; of a stretching one the least."""
        return max(self.least, len(self.title), *(_cells(cell) for cell in self.cells), 0)


def table(columns: Sequence[Column], width: int) -> tuple[Text, Callable[[int], Text]]:
    """The line of titles, and what makes the line of a row."""
    kept = [column for column in columns if column.draw or any(column.cells)]
    while len(kept) > 1 and _needed(kept) > width:
        least = max(column.rank for column in kept)
        kept.remove([column for column in kept if column.rank == least][-1])
    spare = max(width - _needed(kept), 0)
    widths = [
        min(column.width + spare, max(column.most, column.width)) if column.draw else column.width
        for column in kept
    ]
    titles = [_padded(Text(c.title), w, c.right) for c, w in zip(kept, widths, strict=True)]
    head = cut(_joined(titles), width)
    head.stylize("bold")

    def row(number: int) -> Text:
        cells = [_cell(column, number, w) for column, w in zip(kept, widths, strict=True)]
        return cut(_joined(cells), width)

    return head, row


def _cell(column: Column, row: int, width: int) -> Text:
    if column.draw:
        return _padded(column.draw(row, width), width, right=False)
    cell = column.cells[row]
    return _padded(cell if isinstance(cell, Text) else Text(cell), width, column.right)


def _padded(text: Text, width: int, right: bool) -> Text:
    space = Text(" " * max(width - text.cell_len, 0))
    return space + text if right else text + space


def _joined(parts: Sequence[Text]) -> Text:
    line = Text(" " * GAP).join(parts)
    line.rstrip()
    return line


def _needed(columns: Sequence[Column]) -> int:
    return sum(column.width for column in columns) + GAP * (len(columns) - 1)


def _length(texts: Sequence[Text]) -> int:
    return sum(text.cell_len for text in texts) + GAP * (len(texts) - 1)


def _cells(cell: str | Text) -> int:
    return cell_len(cell.plain if isinstance(cell, Text) else cell)
