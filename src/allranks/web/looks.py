"""The numbers of a run as its plots need them: a few hundred points each, however long it ran."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from allranks.errors import UsageError
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
    found = {name: series(source, name) for name in dict.fromkeys(shown)}
    smoothed = (
        {"train_loss": series(source, "train_loss", weight=weight)}
        if weight and "train_loss" in found
        else {}
    )
    steps, parts = phases_over_time(source)
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


def series(
    source: Source, name: str, *, x: str = "step", weight: float = 0.0, most: int = _POINTS
) -> Points:
    """One metric over steps, or over seconds since the first line (``x="time"``)."""
    for table in (source.train, source.val, source.epoch):
        if name in table.names:
            xs, ys = _pairs(table[x], table[name])
            begin = _first_time(source) if x == "time" else 0.0
            xs, ys = _last_fit(xs, ys) if x == "step" else (xs, ys)
            ys = smooth(ys, weight) if weight else ys
            return thin([each - begin for each in xs], ys, most)
    return [], []


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


def _last_fit(xs: list[float], ys: list[float]) -> Points:
    """A script may train several times, each from step 0: one axis can only show one of them."""
    falls = [place for place, (a, b) in enumerate(pairwise(xs), 1) if b < a]
    begin = falls[-1] if falls else 0
    return xs[begin:], ys[begin:]


def _first_time(source: Source) -> float:
    return next((float(each) for each in source.train["time"] if each is not None), 0.0)


def _rounded(points: Points) -> list[list[float | None]]:
    return [[_short(each, 10) for each in points[0]], [_short(each, 6) for each in points[1]]]


def _short(value: float | None, digits: int = 3) -> float | None:
    """Fewer digits are fewer bytes; what JSON has no word for is left out."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")
