"""The data of the page's plots: a few hundred points each, however long the run is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any
from weakref import WeakKeyDictionary

from allranks.core.json_numbers import unix_seconds
from allranks.errors import UsageError
from allranks.observe.view.heatmap_data import heatmap, heatmap_kinds
from allranks.observe.view.metric_columns import (
    INDEX_COLUMNS,
    MetricColumns,
    fit_start,
    smooth,
    thin,
)
from allranks.observe.view.model import TIMINGS
from allranks.observe.view.run_source import RunSource
from allranks.observe.view.step_phases import mean_phases, phases_over_time

Points = tuple[list[float], Sequence[float | None]]

_POINTS = 700
_COLUMNS = 240
LOSSES = ("train_loss", "val_loss")
THROUGHPUT = ("samples_per_second", "tokens_per_second", "mfu")


class PhaseCache:
    """The phases over all steps of a run, computed again only when a line was added."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[RunSource, tuple[object, dict[str, float]]] = (
            WeakKeyDictionary()
        )

    def of(self, source: RunSource) -> dict[str, float]:
        """Return the seconds of a step by phase."""
        mark = source.folder, len(source.train), source.train.last("time")
        known = self._known.get(source)
        if known is None or known[0] != mark:
            known = self._known[source] = mark, mean_phases(source)
        return known[1]


def plots(source: RunSource, names: Sequence[str] = (), weight: float = 0.0) -> dict[str, Any]:
    """Return the plots of one run by step; ``names`` are further metrics to draw."""
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
    steps, parts = phases_over_time(source, begin=source.train.first_since(since))
    return {
        "names": known,
        "chosen": chosen,
        "nonfinite": nonfinite(source, found, since),
        "series": {name: _round_points(points) for name, points in found.items()},
        "smooth": {name: _round_points(points) for name, points in smoothed.items()},
        "phases": {
            "steps": steps,
            "parts": {
                name: [_round_digits(each) for each in values] for name, values in parts.items()
            },
        },
        "heats": heatmap_kinds(source),
    }


def _first_other(names: Sequence[str]) -> list[str]:
    """Return a metric for the free plot when none was chosen: one without a plot of its own."""
    own = {*LOSSES, *THROUGHPUT, *TIMINGS, "lr", "flops_per_second"}
    return [name for name in names if name not in own][:1]


def metric_names(source: RunSource) -> list[str]:
    """Return every metric that can be drawn over the steps, also those that are not finite."""
    tables = _tables(source)
    names = [name for _, table in tables for name in table.names if name not in INDEX_COLUMNS]
    return list(
        dict.fromkeys(
            [*names, *(name for kind, _ in tables for name in _nonfinite_names(source, kind))]
        )
    )


def series(
    source: RunSource,
    name: str,
    since: float,
    *,
    x: str = "step",
    weight: float = 0.0,
    most: int = _POINTS,
) -> Points:
    """Return one metric since that time, over steps or over seconds (``x="time"``)."""
    table = _table_with(source, name)
    begin = table.first_since(since)
    xs, ys = _pairs(table.part(x, begin), table.part(name, begin))
    found = thin(xs, smooth(ys, weight) if weight else ys, most)
    return found if x == "step" else _by_time(source, found, since)


def nonfinite(
    source: RunSource, names: Iterable[str], since: float, x: str = "step"
) -> dict[str, list[float]]:
    """Return the first and last x of metrics that are NaN or infinite at their end."""
    zero = _first_time(source, since) if x == "time" else 0.0
    bad = {name for kind, _ in _tables(source) for name in _nonfinite_names(source, kind)}
    found: dict[str, list[float]] = {}
    for name in bad.intersection(names):
        table = _table_with(source, name)
        begin = table.first_since(since)
        lines = [*zip(table.part(x, begin), table.part(name, begin), strict=True)]
        lost = takewhile(lambda line: line[1] is None, reversed(lines))
        places = [at - zero for at, _ in lost if at is not None]
        found |= {name: [places[-1], places[0]]} if places else {}
    return found


def _tables(source: RunSource) -> list[tuple[str, MetricColumns]]:
    return [("train", source.train), ("val", source.val), ("epoch", source.epoch)]


def _nonfinite_names(source: RunSource, kind: str) -> Sequence[str]:
    return source.nonfinite.get(kind, ())


def _table_with(source: RunSource, name: str) -> MetricColumns:
    """Return the table that has a metric; an empty one without any."""
    known = (
        table
        for kind, table in _tables(source)
        if name in table or name in _nonfinite_names(source, kind)
    )
    return next(known, MetricColumns())


def _by_time(source: RunSource, points: Points, since: float) -> Points:
    """Return seconds since the first line, with None where an attempt starts, to leave a gap."""
    zero = _first_time(source, since)
    moments = (unix_seconds(one.attempt.start) for one in source.attempts.values())
    xs = points[0]
    starts = [(at, None) for at in moments if at and xs and xs[0] < at < xs[-1]]
    both = sorted([*zip(*points, strict=True), *starts], key=lambda point: point[0])
    return [x - zero for x, _ in both], [y for _, y in both]


def _first_time(source: RunSource, since: float) -> float:
    times = source.train["time"]
    return next((float(each) for each in times if each is not None and each >= since), 0.0)


def heat_map(source: RunSource, what: str) -> dict[str, Any]:
    """Return ranks × time as rows of numbers with three digits, enough for a colour."""
    known = heatmap_kinds(source)
    if what not in known:
        there = ", ".join(known) or "none so far"
        raise UsageError(f"There is no heat map '{what}' of this run. There are: {there}.")
    found = heatmap(source, what, columns=_COLUMNS)
    return {
        "what": what,
        "title": found.title,
        "unit": found.unit,
        "low": found.low,
        "high": found.high,
        "rows": found.rows,
        "times": [round(each, 1) for each in found.times],
        "breaks": found.breaks,
        "values": [[_round_digits(each) for each in row] for row in found.values],
    }


def _pairs(xs: Sequence[Any], ys: Sequence[Any]) -> tuple[list[float], list[float]]:
    """Return the points of which both numbers are known."""
    pairs = [(a, b) for a, b in zip(xs, ys, strict=True) if a is not None and b is not None]
    return [a for a, _ in pairs], [b for _, b in pairs]


def _round_points(points: Points) -> list[list[float | None]]:
    return [
        [_round_digits(each, 10) for each in points[0]],
        [_round_digits(each, 6) for each in points[1]],
    ]


def _round_digits(value: float | None, digits: int = 3) -> float | None:
    """Round to save bytes; values that JSON cannot express become None."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")
