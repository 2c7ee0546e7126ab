"""Lines over steps, times or numbers of processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from allranks.core.plots import axes, svg
from allranks.core.plots.axes import Axis

TOP, BOTTOM, RIGHT = 32, 42, 18
THICK, THIN, DENSE = 2, 1.3, 150
"""Widths of a line; with more points than the last it is thin, so that a noisy one is no band."""


@dataclass(frozen=True)
class LineSeries:
    """One line. None, NaN and infinite values are gaps in it."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float | None]
    colour: str | None = None
    """Of its own; else the next of the palette."""
    dashed: bool = False
    points: bool = False
    """Each value is marked: for few, measured ones."""
    spread: Sequence[tuple[float, float] | None] = ()
    """For each value the lowest and the highest that were measured, drawn as an error bar."""


def line_plot(
    lines: Sequence[LineSeries],
    *,
    x: str,
    y: str = "",
    title: str = "",
    log_x: bool = False,
    log_y: bool = False,
    time_x: bool = False,
    width: float = 720,
    height: float = 320,
    zero: bool = False,
    x_ticks: Sequence[float] = (),
    y_ticks: Sequence[float] = (),
    stretch: tuple[float, float, str] | None = None,
) -> str:
    """Draw the lines as an SVG.

    ``x`` and ``y`` name the axes; ``time_x``: x are seconds since the beginning; ``zero``: y begins at 0;
    ``x_ticks`` and ``y_ticks``: in place of round numbers; ``stretch``: from this x to that one the ground
    is coloured, with these words.
    """
    several = len(lines) > 1 or not (title or y)
    names = [(one.name, place, one.colour, one.dashed) for place, one in enumerate(lines)]
    keys, top = svg.legend(names if several else [], 12, TOP + 10, width - RIGHT)
    top = top + 4 if several else TOP + 8
    bottom = height - BOTTOM
    drawn = [_segments(one, log_x, log_y) for one in lines]
    points = [point for segments in drawn for segment in segments for point in segment]
    points += [point for one in lines for point in _ends(one, log_x, log_y)] if points else []
    ends = [(x, y) for x in (stretch or ())[:2] for _, y in points[:1]]
    across, up = _axes([*points, *ends], (top, bottom), width, log_x, log_y, time_x, zero)
    across = axes.with_ticks(across, [x for x, _ in points], x_ticks) if x_ticks else across
    up = axes.with_ticks(up, [y for _, y in points], y_ticks) if y_ticks else up
    parts = [*svg.heading(title, y, 12, width - 24), *keys]
    parts += _stretch(*stretch, across, up) if stretch and points else []
    parts += frame(across, up, x) if points else []
    for place, (one, segments) in enumerate(zip(lines, drawn, strict=True)):
        parts += _draw(one, place, segments, across, up)
    if not points:
        parts.append(nothing((across.start + across.end) / 2, (top + bottom) / 2))
    return svg.document(width, height, parts, title or y or x)


def _stretch(begin: float, end: float, words: str, across: Axis, up: Axis) -> list[str]:
    """Draw a coloured background with its label above the middle, kept inside the plot."""
    left, right = across.at(begin), across.at(end)
    half = svg.text_width(words) / 2
    middle = max(min((left + right) / 2, across.end - half), across.start + half)
    spot = f'x="{svg.number(left)}" y="{svg.number(up.end)}"'
    size = f'width="{svg.number(max(right - left, 2))}" height="{svg.number(up.start - up.end)}"'
    _, plain = svg.paint(1)
    return [
        f'<rect class="f2" {spot} {size} fill="{plain}" fill-opacity="0.15"/>',
        svg.text(middle, up.end + 16, words, "middle"),
    ]


def frame(across: Axis, up: Axis, x: str) -> list[str]:
    """Draw the grid, the ticks and the name of the x axis."""
    left, right, bottom = across.start, across.end, up.start
    level = [svg.line(left, up.at(tick), right, up.at(tick)) for tick in up.ticks]
    short = [
        svg.line(across.at(tick), bottom, across.at(tick), bottom + 4) for tick in across.ticks
    ]
    parts = [f'<g class="g" stroke="{svg.GRID}">{"".join(level + short)}</g>']
    parts += [
        svg.text(left - 8, up.at(tick) + 4, words, "end", soft=True)
        for tick, words in zip(up.ticks, up.texts, strict=True)
    ]
    parts += [
        svg.text(_inside(across.at(tick), words, right), bottom + 18, words, "middle", soft=True)
        for tick, words in zip(across.ticks, across.texts, strict=True)
    ]
    return [*parts, svg.text((left + right) / 2, bottom + 35, x, "middle", soft=True)]


def _inside(x: float, words: str, right: float) -> float:
    """Return the centre of a label below the axis, so that the last one is not cut off."""
    return min(x, right + RIGHT - svg.text_width(words) / 2 - 2)


def nothing(x: float, y: float) -> str:
    """Draw the text that replaces an empty plot."""
    return svg.text(x, y, "no data yet", "middle", soft=True)


def left_margin(texts: Sequence[str]) -> float:
    """Return the width that the labels of the y axis need."""
    return 20 + max((svg.text_width(words) for words in texts), default=0) + 4


def _axes(
    points: Sequence[tuple[float, float]],
    vertical: tuple[float, float],
    width: float,
    log_x: bool,
    log_y: bool,
    time_x: bool,
    zero: bool,
) -> tuple[Axis, Axis]:
    top, bottom = vertical
    make_y: axes.Make = axes.logarithmic if log_y else partial(axes.linear, zero=zero)
    make_x: axes.Make = axes.logarithmic if log_x else axes.time_axis if time_x else axes.tight
    up = make_y([y for _, y in points], bottom, top)
    left = left_margin(up.texts)
    return make_x([x for x, _ in points], left, width - RIGHT), up


def _segments(one: LineSeries, log_x: bool, log_y: bool) -> list[list[tuple[float, float]]]:
    """Split a line at its gaps."""
    segments: list[list[tuple[float, float]]] = [[]]
    for x, y in zip(one.xs, one.ys, strict=False):
        if y is not None and axes.usable(x, log_x) and axes.usable(y, log_y):
            segments[-1].append((x, y))
        elif segments[-1]:
            segments.append([])
    return [segment for segment in segments if segment]


def _ends(one: LineSeries, log_x: bool, log_y: bool) -> list[tuple[float, float]]:
    """Return the lower and the upper end of every error bar, one after the other."""
    pairs = [(x, spread) for x, spread in zip(one.xs, one.spread, strict=False) if spread]
    ends = [((x, low), (x, high)) for x, (low, high) in pairs]
    return [
        end
        for bar in ends
        if all(axes.usable(x, log_x) and axes.usable(y, log_y) for x, y in bar)
        for end in bar
    ]


def _bars(ends: Sequence[tuple[float, float]], across: Axis, up: Axis) -> str:
    """Draw error bars with a short line across each end."""
    marks = []
    for (x, low), (_, high) in zip(ends[::2], ends[1::2], strict=True):
        middle, bottom, top = across.at(x), up.at(low), up.at(high)
        marks.append(svg.line(middle, bottom, middle, top))
        marks += [svg.line(middle - 4, y, middle + 4, y) for y in (bottom, top)]
    return "".join(marks)


def _draw(
    one: LineSeries, place: int, segments: list[list[tuple[float, float]]], across: Axis, up: Axis
) -> Iterator[str]:
    kind, plain = svg.paint(place, one.colour)
    dash = ' stroke-dasharray="6 4"' if one.dashed else ""
    if bars := _bars(_ends(one, across.log, up.log), across, up):
        yield f'<g class="{kind}" stroke="{plain}" stroke-width="1.5">{bars}</g>'
    for segment in segments:
        spots = [(across.at(x), up.at(y)) for x, y in segment]
        if len(spots) > 1:
            thick = THICK if len(spots) <= DENSE else THIN
            way = " ".join(f"{svg.number(x)},{svg.number(y)}" for x, y in spots)
            yield (
                f'<polyline class="{kind}" points="{way}" fill="none" stroke="{plain}" '
                f'stroke-width="{thick}" stroke-linejoin="round" stroke-linecap="round"{dash}/>'
            )
        if one.points or len(spots) == 1:
            fill = kind.replace("c", "f")
            for x, y in spots:
                spot = f'cx="{svg.number(x)}" cy="{svg.number(y)}" r="3.5"'
                yield f'<circle class="{fill}" {spot} fill="{plain}"/>'
