"""Stacked bars: what a step, a run or a measurement is made of."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from allranks.core.plots import axes, svg
from allranks.core.plots.axes import Axis
from allranks.core.plots.line_chart import BOTTOM, RIGHT, TOP, frame, left_margin, nothing

MOST_SUMS = 16
"""Above more bars than these no sums are written."""


def bar_plot(
    labels: Sequence[str],
    parts: Mapping[str, Sequence[float | None]],
    *,
    x: str = "",
    y: str = "",
    title: str = "",
    width: float = 720,
    height: float = 320,
) -> str:
    """Draw one bar for each label, stacked from the parts; absent and negative values count as 0.

    The parts keep their order and colours, also those that are 0 everywhere.
    """
    several = len(parts) > 1
    names = [(name, place, None, False) for place, name in enumerate(parts)]
    keys, top = svg.legend(names if several else [], 12, TOP + 10, width - RIGHT)
    top = top + 10 if several else TOP + 16
    bottom = height - BOTTOM + (0 if x else 14)
    columns = [[_height(part, place) for part in parts.values()] for place in range(len(labels))]
    sums = [sum(column) for column in columns]
    up = axes.linear(sums, bottom, top, zero=True)
    left = left_margin(up.texts)
    across = _labelled(labels, left, width - RIGHT)
    slot = (across.end - across.start) / max(len(labels), 1)
    drawn = [*svg.heading(title, y, 12, width - 24), *keys]
    drawn += frame(across, up, x) if any(sums) else []
    for place, column in enumerate(columns):
        drawn += _stack(column, across.at(place), min(slot * 0.72, 84), up)
        if len(labels) <= MOST_SUMS and sums[place]:
            over = up.at(sums[place]) - 6
            drawn.append(svg.text(across.at(place), over, axes.compact(sums[place]), "middle"))
    if not any(sums):
        drawn.append(nothing((left + width - RIGHT) / 2, (top + bottom) / 2))
    return svg.document(width, height, drawn, title or y)


def _height(part: Sequence[float | None], place: int) -> float:
    value = part[place] if place < len(part) else None
    return max(axes.clipped(value), 0.0) if value is not None and axes.usable(value) else 0.0


def _labelled(labels: Sequence[str], left: float, right: float) -> Axis:
    """Return the bars to label: where labels would touch, only every second, third … one."""
    slot = (right - left) / max(len(labels), 1)
    widest = min(max((svg.text_width(label) for label in labels), default=0), 150) + 10
    stride = max(1, math.ceil(widest / slot)) if slot < 60 else 1
    places = range(0, len(labels), stride)
    texts = [svg.shortened(labels[place], slot * stride - 4) for place in places]
    return Axis(-0.5, len(labels) - 0.5, left, right, list(places), texts)


def _stack(column: Sequence[float], middle: float, width: float, up: Axis) -> Iterator[str]:
    base = 0.0
    for place, value in enumerate(column):
        if not value:
            continue
        kind, plain = svg.paint(place)
        top, foot = up.at(base + value), up.at(base)
        spot = f'x="{svg.number(middle - width / 2)}" y="{svg.number(top)}"'
        size = f'width="{svg.number(width)}" height="{svg.number(max(foot - top, 0.5))}"'
        yield f'<rect class="{kind.replace("c", "f")}" {spot} {size} fill="{plain}"/>'
        base += value
