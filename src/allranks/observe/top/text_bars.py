"""Bars and curves out of characters: blocks where the terminal can show them, else ASCII."""

from __future__ import annotations

import codecs
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.text import Text


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
    """Blocks for a terminal in UTF-8, ASCII for any other."""
    try:
        name = codecs.lookup(encoding or "ascii").name
    except LookupError:
        return ASCII
    return BLOCKS if name.startswith("utf") else ASCII


def bar(share: float | None, width: int, style: str, glyphs: Glyphs = BLOCKS) -> Text:
    """How full something is; no bar at all where that is not known."""
    if share is None or not math.isfinite(share) or width <= 0:
        return Text(" " * max(width, 0))
    steps = len(glyphs.parts)
    filled = round(min(max(share, 0.0), 1.0) * width * steps)
    if share > 0:
        filled = max(filled, 1)
    whole, rest = divmod(filled, steps)
    drawn = glyphs.parts[-1] * whole + (glyphs.parts[rest - 1] if rest else "")
    return Text.assemble((drawn, style), (glyphs.empty * (width - len(drawn)), "dim"))


def stacked(parts: Mapping[str, float], width: int) -> Text:
    """One bar of all phases, each in its colour and of its own letter."""
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
    """A curve of one line, the x axis evenly; over a wide range its logarithm is drawn."""
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
    """The mean of each column; a column without a point repeats the one before."""
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
