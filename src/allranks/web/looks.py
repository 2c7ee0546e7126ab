"""The numbers of a run as its plots need them: a few hundred points each, however long it ran."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from allranks.errors import UsageError
from allranks.monitor.columns import Columns
from allranks.monitor.heat import heat, kinds
from allranks.monitor.phases import phases_over_time
from allranks.monitor.series import smooth, thin
from allranks.monitor.source import Source

Points = tuple[list[float], list[float]]

_POINTS = 700
_COLUMNS = 240
LOSSES = ("train_loss", "val_loss")
THROUGHPUT = ("samples_per_second", "tokens_per_second", "mfu")
_FIXED = {"time", "step", "epoch", "kind", "nonfinite"}


def plots(source: Source, names: Sequence[str] = (), weight: float = 0.0) -> dict[str, Any]:
    """The plots of one run by step; ``names`` are metrics that were chosen besides."""
    known = metric_names(source)
    chosen = [name for name in names if name in known] or _first_other(known)
    shown = [name for name in (*LOSSES, *THROUGHPUT, *chosen) if name in known]
    since = fit_start(source)
    found = {name: series(source, name, since) for name in dict.fromkeys(shown)}
    smoothed = (
        {"train_loss": series(source, "train_loss", since, weight=weight)}
        if weight and "train_loss" in found
        else {}
    )
    steps, parts = phases_over_time(source, begin=_place(source.train, since))
    return {
        "names": known,
        "chosen": chosen,
        "series": {name: _rounded(points) for name, points in found.items()},
        "smooth": {name: _rounded(points) for name, points in smoothed.items()},
        "phases": {
            "steps": steps,
            "parts": {name: [_short(each) for each in values] for name, values in parts.items()},
        },
        "heats": kinds(source),
    }


def _first_other(names: Sequence[str]) -> list[str]:
    """A metric for the plot of any metric when none was chosen: one that has no plot of its own."""
    own = {*LOSSES, *THROUGHPUT, "lr", "flops_per_second"}
    return [name for name in names if name not in own and not name.endswith("_seconds")][:1]


def metric_names(source: Source) -> list[str]:
    """Everything that can be drawn over the steps."""
    tables = (source.train, source.val, source.epoch)
    names = dict.fromkeys(name for table in tables for name in table.names if name not in _FIXED)
    return list(names)


def fit_start(source: Source) -> float:
    """When the last fit began: a script may train several times, and one axis can show one of them.

    A fit begins where the steps of training fall; what else it wrote is later than that line. 0 when
    there was but one.
    """
    lines = _pairs(source.train["step"], source.train["time"])
    falls = [place for place, (a, b) in enumerate(pairwise(lines[0]), 1) if b < a]
    return lines[1][falls[-1]] if falls else 0.0


def series(
    source: Source,
    name: str,
    since: float,
    *,
    x: str = "step",
    weight: float = 0.0,
    most: int = _POINTS,
) -> Points:
    """One metric since then, over steps or over seconds (``x="time"``)."""
    for table in (source.train, source.val, source.epoch):
        if name in table:
            begin = _place(table, since)
            xs, ys = _pairs(table.part(x, begin), table.part(name, begin))
            ys = smooth(ys, weight) if weight else ys
            zero = _first_time(source, since) if x == "time" else 0.0
            return thin([each - zero for each in xs], ys, most)
    return [], []


def _first_time(source: Source, since: float) -> float:
    times = source.train["time"]
    return next((float(each) for each in times if each is not None and each >= since), 0.0)


def _place(table: Columns, since: float) -> int:
    """The first line of the table that is not earlier."""
    later = (at for at, time in enumerate(table["time"]) if time is not None and time >= since)
    return next(later, len(table))


def heat_map(source: Source, what: str) -> dict[str, Any]:
    """Ranks × time as rows of numbers with three digits: what a colour can show."""
    known = kinds(source)
    if what not in known:
        there = ", ".join(known) or "none so far"
        raise UsageError(f"There is no heat map '{what}' of this run. There are: {there}.")
    found = heat(source, what, columns=_COLUMNS)
    return {
        "what": what,
        "title": found.title,
        "unit": found.unit,
        "low": found.low,
        "high": found.high,
        "rows": found.rows,
        "times": [round(each, 1) for each in found.times],
        "breaks": found.breaks,
        "values": [[_short(each) for each in row] for row in found.values],
    }


def _pairs(xs: Sequence[Any], ys: Sequence[Any]) -> Points:
    """The points of which both numbers are known."""
    pairs = [(a, b) for a, b in zip(xs, ys, strict=True) if a is not None and b is not None]
    return [a for a, _ in pairs], [b for _, b in pairs]


def _rounded(points: Points) -> list[list[float | None]]:
    return [[_short(each, 10) for each in points[0]], [_short(each, 6) for each in points[1]]]


def _short(value: float | None, digits: int = 3) -> float | None:
    """Fewer digits are fewer bytes; what JSON has no word for is left out."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")
