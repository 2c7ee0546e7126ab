"""The plots of a study: speed-up, efficiency, phases of a step, cost."""

from __future__ import annotations

from collections.abc import Sequence

from allranks.core.plots import LineSeries, bar_plot, line_plot
from allranks.observe.scaling.conclusions import EFFICIENT
from allranks.observe.scaling.scaling_study import Study
from allranks.observe.scaling.size_results import Analysis, SizeResult, step_groups
from allranks.observe.scaling.study_table import cost_titles

_STACK = (
    "compute",
    "step",
    "optimizer",
    "data",
    "checkpoint",
    "other",
    "stragglers",
    "communication",
)
"""From the bottom of a bar: the work first, what is lost on top of it."""
_MOST_TICKS = 9
_WIDE = 8
"""From this growth on the axes are logarithmic."""


def speedup_plot(study: Study, found: Analysis) -> str:
    """Draw the speed-up over the smallest size, beside the ideal one and the fitted law."""
    rows = _measured(found)
    base, sizes = rows[0].size, [float(row.size) for row in rows]
    log = sizes[-1] / sizes[0] >= _WIDE
    lines = [
        LineSeries(
            "measured", sizes, [row.speedup for row in rows], points=True, spread=_spreads(rows)
        ),
        LineSeries("ideal", sizes, [size / base for size in sizes], dashed=True),
    ]
    if found.fit and found.fit.serial > 0:
        fine = _between(sizes)
        law = [found.fit.speedup(size / base) for size in fine]
        name = f"{found.fit.law}, {found.fit.serial * 100:.1f} % serial"
        lines.append(LineSeries(name, fine, law, dashed=True))
    return line_plot(
        lines,
        x=study.axis.many,
        y=f"over {study.axis.count(base)}",
        title="Speed-up",
        log_x=log,
        log_y=log,
        zero=not log,
        x_ticks=_ticks(sizes),
        y_ticks=[size / base for size in _ticks(sizes)] if log else (),
    )


def efficiency_plot(study: Study, found: Analysis) -> str:
    """Draw the efficiency, and the line above which a size counts as efficient."""
    rows = _measured(found)
    sizes = [float(row.size) for row in rows]
    ends = [sizes[0], sizes[-1]]
    spreads = [_scaled(row, spread) for row, spread in zip(rows, _spreads(rows), strict=True)]
    return line_plot(
        [
            LineSeries(
                "measured", sizes, [row.efficiency for row in rows], points=True, spread=spreads
            ),
            LineSeries("ideal", ends, [1.0, 1.0], dashed=True),
            LineSeries(f"{EFFICIENT:g}", ends, [EFFICIENT, EFFICIENT], dashed=True),
        ],
        x=study.axis.many,
        title="Efficiency",
        log_x=sizes[-1] / sizes[0] >= _WIDE,
        x_ticks=_ticks(sizes),
        y_ticks=(0, 0.25, 0.5, 0.75, 1),
    )


def step_plot(study: Study, found: Analysis) -> str:
    """Draw the phases of a step at each size; empty when they are unknown."""
    rows = [row for row in found.rows if row.measurement and row.measurement.phases]
    if not rows:
        return ""
    strong = found.kind == "strong"
    parts = [step_groups(row.measurement) for row in rows if row.measurement]
    scales = [1000.0 * (row.size if strong else 1) for row in rows]
    used = [name for name in _STACK if any(part[name] > 0 for part in parts)]
    unit = f"milliseconds × {study.axis.many}" if strong else "milliseconds"
    return bar_plot(
        [study.axis.count(row.size) for row in rows],
        {
            name: [part[name] * scale for part, scale in zip(parts, scales, strict=True)]
            for name in used
        },
        y=f"{unit}; ideal: bars of the same height",
        title="A step",
    )


def cost_plot(study: Study, found: Analysis) -> str:
    """Draw the cost at each size."""
    rows = [row for row in found.rows if row.cost]
    words, labels = cost_titles(study, found)[1], [study.axis.count(row.size) for row in rows]
    return bar_plot(
        labels, {words.partition(" ")[0]: [row.cost for row in rows]}, y=words, title="Cost"
    )


def _measured(found: Analysis) -> list[SizeResult]:
    return [row for row in found.rows if row.speedup]


def _spreads(rows: Sequence[SizeResult]) -> list[tuple[float, float] | None]:
    """Return the range from the slowest to the fastest repetition, as speed-ups."""
    return [
        (row.speedup * row.low / row.rate, row.speedup * row.high / row.rate)
        if row.speedup and row.rate and row.low and row.high and row.low < row.high
        else None
        for row in rows
    ]


def _scaled(row: SizeResult, spread: tuple[float, float] | None) -> tuple[float, float] | None:
    if spread is None or not row.speedup or not row.efficiency:
        return None
    share = row.efficiency / row.speedup
    return spread[0] * share, spread[1] * share


def _ticks(sizes: Sequence[float]) -> Sequence[float]:
    """Return the sizes; of many, those that are at least twice the one before."""
    if len(sizes) <= _MOST_TICKS:
        return sizes
    kept = [sizes[0]]
    for size in sizes:
        if size >= 2 * kept[-1]:
            kept.append(size)
    return kept


def _between(sizes: Sequence[float]) -> list[float]:
    """Return enough positions for a smooth curve, the sizes among them."""
    low, high = sizes[0], sizes[-1]
    return [low * (high / low) ** (place / 48) for place in range(49)]
