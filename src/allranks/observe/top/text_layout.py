"""Text that fits a terminal: lines, columns, bars and curves out of characters, in blocks or ASCII."""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from rich.cells import cell_len, chop_cells
from rich.text import Text

from allranks.core import formatting as wording
from allranks.core.formatting import three

_SIZES = ("B", "K", "M", "G", "T", "P")


def memory(used: float | None, total: float | None) -> str:
    """Format ``61.2/80G``, ``700/1536G``: both in the binary unit in which the total has two digits.

    Parts are rounded to a tenth of that unit.
    """
    if used is None:
        return ""
    whole, unit = float(total or used), 0
    while whole >= (9.95 * 1024 if total else 999.5) and unit < len(_SIZES) - 1:
        whole, unit = whole / 1024, unit + 1
    if not total:
        return f"{three(whole)}{_SIZES[unit]}"
    return f"{three(round(used / 1024**unit, 1))}/{three(whole)}{_SIZES[unit]}"


def percent(share: float | None) -> str:
    """Format a share: ``97%``."""
    return wording.percent(share, gap="")


_WORD = re.compile(r"\s*\S+")
GAP = 2
"""Spaces between two pieces or columns."""


@dataclass(frozen=True)
class LinePiece:
    """A part of a line; the highest ``rank`` is dropped first where it does not fit."""

    text: Text
    rank: int = 0

    @classmethod
    def of(cls, text: str, style: str = "", rank: int = 0) -> LinePiece:
        """Return a piece of a string."""
        return cls(Text(text, style), rank)


def fit(pieces: Sequence[LinePiece], width: int, more: str = "…") -> Text:
    """Join as many of the pieces as fit, in their order."""
    kept = [piece for piece in pieces if piece.text.cell_len]
    while len(kept) > 1 and _length([piece.text for piece in kept]) > width:
        least = max(piece.rank for piece in kept)
        place = max(n for n, piece in enumerate(kept) if piece.rank == least)
        del kept[place]
    return cut(Text(" " * GAP).join(piece.text for piece in kept), width, more)


def cut(text: Text, width: int, more: str = "…") -> Text:
    """Cut to at most ``width`` cells, with a mark at the end where text is missing."""
    if text.cell_len <= width:
        return text
    text = text.copy()
    text.truncate(max(width - len(more), 0))
    return text.append(more[: max(width, 0)])


def wrap(text: str, width: int, most: int, style: str = "", more: str = "…") -> list[Text]:
    """Wrap a sentence to at most ``most`` lines."""
    lines = list(_fold(text, max(width, 1)))
    kept = [cut(Text(line, style), width, more) for line in lines[:most]]
    if len(lines) > most and kept:
        kept[-1] = cut(Text(f"{lines[most - 1]} {lines[most]}", style), width, more)
    return kept


def _fold(text: str, width: int) -> Iterator[str]:
    """Fold between words, counted in cells: a wide character takes two of them."""
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
    """The highest is dropped first where it does not fit."""
    right: bool = True
    draw: Callable[[int, int], Text] | None = field(default=None, compare=False)
    """(row, width) → a cell of that width, for the one column that stretches."""
    least: int = 0
    most: int = 0

    @cached_property
    def width(self) -> int:
        """Return the width of its widest cell; of a stretching column the least."""
        return max(self.least, len(self.title), *(_cells(cell) for cell in self.cells), 0)


def table(columns: Sequence[Column], width: int) -> tuple[Text, Callable[[int], Text]]:
    """Return the line of titles, and a function that makes the line of a row."""
    kept = [column for column in columns if column.draw or any(column.cells)]
    while len(kept) > 1 and _needed(kept) > width:
        least = max(column.rank for column in kept)
        kept.remove([column for column in kept if column.rank == least][-1])
    spare = max(width - _needed(kept), 0)
    widths = [
        min(column.width + spare, max(column.most, column.width)) if column.draw else column.width
        for column in kept
    ]
    titles = [_pad(Text(c.title), w, c.right) for c, w in zip(kept, widths, strict=True)]
    head = cut(_join(titles), width)
    head.stylize("bold")

    def row(number: int) -> Text:
        cells = [_cell(column, number, w) for column, w in zip(kept, widths, strict=True)]
        return cut(_join(cells), width)

    return head, row


def _cell(column: Column, row: int, width: int) -> Text:
    if column.draw:
        return _pad(column.draw(row, width), width, right=False)
    cell = column.cells[row]
    return _pad(cell if isinstance(cell, Text) else Text(cell), width, column.right)


def _pad(text: Text, width: int, right: bool) -> Text:
    space = Text(" " * max(width - text.cell_len, 0))
    return space + text if right else text + space


def _join(parts: Sequence[Text]) -> Text:
    line = Text(" " * GAP).join(parts)
    line.rstrip()
    return line


def _needed(columns: Sequence[Column]) -> int:
    return sum(column.width for column in columns) + GAP * (len(columns) - 1)


def _length(texts: Sequence[Text]) -> int:
    return sum(text.cell_len for text in texts) + GAP * (len(texts) - 1)


def _cells(cell: str | Text) -> int:
    return cell_len(cell.plain if isinstance(cell, Text) else cell)


@dataclass(frozen=True)
class Glyphs:
    """The characters to draw with."""

    parts: str
    """A bar's last cell, from the least to the full one."""
    empty: str
    levels: str
    """A curve's heights, the lowest first."""
    more: str
    """Stands for what was cut off."""
    degree: str
    micro: str


BLOCKS = Glyphs(
    parts="▏▎▍▌▋▊▉█", empty="░", levels="▁▂▃▄▅▆▇█", more="…", degree="°", micro="µ"
)  # fmt: skip
ASCII = Glyphs(parts="#", empty=".", levels="_.-=+*#", more="~", degree="", micro="u")

LETTERS = {
    "data": "d",
    "forward": "f",
    "backward": "b",
    "communication": "c",
    "optimizer": "o",
    "checkpoint": "s",
    "other": "-",
}
"""What a phase is drawn with, so that the bar is readable without colours."""

COLOURS = {
    "data": "yellow",
    "forward": "green",
    "backward": "blue",
    "communication": "red",
    "optimizer": "magenta",
    "checkpoint": "cyan",
    "other": "bright_black",
}


def glyphs_for(encoding: str | None) -> Glyphs:
    """Return blocks for a terminal in UTF-8, ASCII for any other."""
    try:
        name = codecs.lookup(encoding or "ascii").name
    except LookupError:
        return ASCII
    return BLOCKS if name.startswith("utf") else ASCII


def bar(share: float | None, width: int, style: str, glyphs: Glyphs = BLOCKS) -> Text:
    """Draw how full something is; blank where that is unknown."""
    if share is None or not math.isfinite(share) or width <= 0:
        return Text(" " * max(width, 0))
    steps = len(glyphs.parts)
    filled = round(min(max(share, 0.0), 1.0) * width * steps)
    if share > 0:
        filled = max(filled, 1)
    whole, rest = divmod(filled, steps)
    drawn = glyphs.parts[-1] * whole + (glyphs.parts[rest - 1] if rest else "")
    return Text.assemble((drawn, style), (glyphs.empty * (width - len(drawn)), "dim"))


def stacked_bar(parts: Mapping[str, float], width: int) -> Text:
    """Draw one bar of all phases, each in its colour and letter."""
    known = {name: max(seconds, 0.0) for name, seconds in parts.items() if math.isfinite(seconds)}
    whole = sum(known.values())
    drawn, begun, text = 0, 0.0, Text()
    for name, seconds in known.items():
        begun += seconds
        end = round(begun / whole * width) if whole else 0
        text.append(
            LETTERS.get(name, "-") * (end - drawn), f"black on {COLOURS.get(name, 'black')}"
        )
        drawn = end
    return text


def sparkline(points: Sequence[tuple[float, float]], width: int, glyphs: Glyphs = BLOCKS) -> str:
    """Draw a curve in one line; over a wide range its logarithm."""
    means = _means([point for point in points if math.isfinite(point[1])], width)
    if len(means) < 2:
        return ""
    if min(means) > 0 and max(means) / min(means) > 3:
        means = [math.log(mean) for mean in means]
    low, high = min(means), max(means)
    top = len(glyphs.levels) - 1
    scale = top / (high - low) if high > low else 0.0
    return "".join(glyphs.levels[round((mean - low) * scale)] for mean in means)


def _means(points: Sequence[tuple[float, float]], width: int) -> list[float]:
    """Return the mean of each column; a column without a point repeats the one before."""
    if len(points) < 2 or width < 2:
        return []
    first, last = points[0][0], points[-1][0]
    columns = min(width, len(points))
    sums: list[list[float]] = [[] for _ in range(columns)]
    for x, y in points:
        place = (x - first) / (last - first) if last > first else 0.0
        sums[min(max(int(place * columns), 0), columns - 1)].append(y)
    means: list[float] = []
    for column in sums:
        means.append(sum(column) / len(column) if column else means[-1])
    return means
