"""Heat maps: one row for each rank or node, one column for each stretch of time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from allranks.core.formatting import step_time
from allranks.core.plots import axes, svg
from allranks.core.plots.line_chart import RIGHT, TOP, left_margin, nothing
from allranks.core.plots.png import LEVELS, data_uri

ROW, LEAST, MOST = 16, 48, 384
"""Pixels of a row, and of all rows together."""
_SCALE = 120
ROOM = 56.0
"""Pixels between two ticks."""


def heat_plot(
    rows: Sequence[str],
    times: Sequence[float],
    values: Sequence[Sequence[float | None]],
    *,
    low: float,
    high: float,
    begin: float = 0.0,
    unit: str = "",
    title: str = "",
    x: str = "since the start",
    breaks: Sequence[int] = (),
    width: float = 720,
) -> str:
    """Draw the cells ``values[row][column]`` as an SVG, coloured from ``low`` to ``high``.

    ``times`` are the ends of the columns in seconds, between which time may be left out, and ``begin`` is
    when the first one begins; a cell without a value stays empty. ``breaks``: columns before which a line
    is drawn.
    """
    top = TOP + 8
    tall = min(max(len(rows) * ROW, LEAST), MOST)
    names = [svg.shortened(name, 150) for name in rows]
    left = left_margin(names)
    height = top + tall + 40
    parts = [
        *svg.heading(title, "", 12, width - 24 - _SCALE - 110),
        *_scale(width, low, high, unit),
    ]
    if rows and times and any(len(row) for row in values):
        parts.append(_cells(values, low, high, (left, top, width - RIGHT - left, tall)))
        parts += _row_names(names, left, top, tall)
        parts += _breaks(breaks, len(times), (left, top, width - RIGHT - left, tall))
        parts += _time_ticks([time - begin for time in times], left, width - RIGHT, top + tall, x)
    else:
        parts.append(nothing(width / 2, top + tall / 2))
    return svg.document(width, height, parts, title or unit)


def _cells(
    values: Sequence[Sequence[float | None]],
    low: float,
    high: float,
    box: tuple[float, float, float, float],
) -> str:
    x, y, width, height = (svg.number(each) for each in box)
    return (
        f'<image x="{x}" y="{y}" width="{width}" height="{height}" preserveAspectRatio="none" '
        f'style="image-rendering:pixelated" href="{data_uri(values, low, high)}"/>'
    )


def _row_names(names: Sequence[str], left: float, top: float, tall: float) -> Iterator[str]:
    """Return as many row labels as fit, evenly chosen."""
    size = tall / len(names)
    stride = max(1, -(-14 // size)) if size < 14 else 1
    for place in range(0, len(names), int(stride)):
        middle = top + (place + 0.5) * size
        yield svg.text(left - 8, middle + 4, names[place], "end", soft=True)


def _breaks(
    breaks: Sequence[int], columns: int, box: tuple[float, float, float, float]
) -> Iterator[str]:
    left, top, width, tall = box
    for place in breaks:
        x = left + width * place / columns
        ends = svg.line(x, top - 4, x, top + tall + 4)
        yield f'<g class="k" stroke="{svg.TEXT}" stroke-width="2">{ends}</g>'


def _time_ticks(
    seconds: Sequence[float], left: float, right: float, bottom: float, x: str
) -> Iterator[str]:
    """Return ticks at the columns that hold their times, without overlap."""
    scale = axes.time_axis(seconds, left, right)
    spots, last = [], -ROOM
    for tick, words in zip(scale.ticks, scale.texts, strict=True):
        spot = left + (right - left) * bisect_left(seconds, tick) / len(seconds)
        if spot - last >= ROOM:
            spots.append((spot, words))
            last = spot
    marks = "".join(svg.line(spot, bottom, spot, bottom + 4) for spot, _ in spots)
    yield f'<g class="g" stroke="{svg.GRID}">{marks}</g>'
    for spot, words in spots:
        yield svg.text(spot, bottom + 17, words, "middle", soft=True)
    yield svg.text((left + right) / 2, bottom + 33, x, "middle", soft=True)


def _scale(width: float, low: float, high: float, unit: str) -> Iterator[str]:
    """Draw the colour scale at the top right."""
    most = step_time(high) if unit == "s" else f"{axes.compact(high)} {unit}".strip()
    right = width - RIGHT - svg.text_width(most) - 6
    ramp = [[float(place) for place in range(LEVELS)]]
    yield svg.text(right - _SCALE - 6, 20, axes.compact(low), "end", soft=True)
    yield _cells(ramp, 0, LEVELS - 1, (right - _SCALE, 11, _SCALE, 10))
    yield svg.text(right + 6, 20, most, soft=True)
