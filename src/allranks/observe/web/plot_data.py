"""The data of the page's plots: a few hundred points each, however long the run is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any
from weakref import WeakKeyDictionary

from allranks.errors import UsageError
from allranks.observe.view.curve_thinning import smooth, thin
from allranks.observe.view.fit_steps import fit_start
from allranks.observe.view.heatmap_data import heatmap, heatmap_kinds
from allranks.observe.view.json_numbers import seconds
from allranks.observe.view.metric_columns import INDEX_COLUMNS, Columns
from allranks.observe.view.model import TIMINGS
from allranks.observe.view.run_source import RunSource
from allranks.observe.view.step_phases import mean_phases, phases_over_time

Points = tuple[list[float], Sequence[float | None]]

_POINTS = 700
_COLUMNS = 240
LOSSES = ("train_loss", "val_loss")
THROUGHPUT = ("samples_per_second", "tokens_per_second", "mfu")


class PhaseCache:
    """What the steps of a run went to, over all of them: counted again only when a line was added."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[RunSource, tuple[object, dict[str, float]]] = (
            WeakKeyDictionary()
        )

    def of(self, source: RunSource) -> dict[str, float]:
        """Seconds of a step by phase."""
        mark = source.folder, len(source.train), source.train.last("time")
        known = self._known.get(source)
        if known is None or known[0] != mark:
            known = self._known[source] = mark, mean_phases(source)
        return known[1]


def plots(source: RunSource, names: Sequence[str] = (), weight: float = 0.0) -> dict[str, Any]:
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
    steps, parts = phases_over_time(source, begin=source.train.place(since))
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
    """A metric for the plot of any metric when none was chosen: one that has no plot of its own."""
    own = {*LOSSES, *THROUGHPUT, *TIMINGS, "lr", "flops_per_second"}
    return [name for name in names if name not in own][:1]


def metric_names(source: RunSource) -> list[str]:
    """Everything that can be drawn over the steps, or could if it were a number."""
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
    """One metric since then, over steps or over seconds (``x="time"``)."""
    table = _table_with(source, name)
    begin = table.place(since)
    xs, ys = _pairs(table.part(x, begin), table.part(name, begin))
    found = thin(xs, smooth(ys, weight) if weight else ys, most)
    return found if x == "step" else _by_time(source, found, since)


def nonfinite(
    source: RunSource, names: Iterable[str], since: float, x: str = "step"
) -> dict[str, list[float]]:
    """Of those that are NaN or infinite in their newest line: since when, and up to where."""
    zero = _first_time(source, since) if x == "time" else 0.0
    bad = {name for kind, _ in _tables(source) for name in _nonfinite_names(source, kind)}
    found: dict[str, list[float]] = {}
    for name in bad.intersection(names):
        table = _table_with(source, name)
        begin = table.place(since)
        lines = [*zip(table.part(x, begin), table.part(name, begin), strict=True)]
        lost = takewhile(lambda line: line[1] is None, reversed(lines))
        places = [at - zero for at, _ in lost if at is not None]
        found |= {name: [places[-1], places[0]]} if places else {}
    return found


def _tables(source: RunSource) -> list[tuple[str, Columns]]:
    return [("train", source.train), ("val", source.val), ("epoch", source.epoch)]


def _nonfinite_names(source: RunSource, kind: str) -> Sequence[str]:
    return source.nonfinite.get(kind, ())


def _table_with(source: RunSource, name: str) -> Columns:
    """The one that tells of a metric; an empty one where none does."""
    known = (
        table
        for kind, table in _tables(source)
        if name in table or name in _nonfinite_names(source, kind)
    )
    return next(known, Columns())


def _by_time(source: RunSource, points: Points, since: float) -> Points:
    """Seconds since the first line, and None where an attempt starts: the wait before it is no line."""
    zero = _first_time(source, since)
    moments = (seconds(one.attempt.start) for one in source.attempts.values())
    xs = points[0]
    starts = [(at, None) for at in moments if at and xs and xs[0] < at < xs[-1]]
    both = sorted([*zip(*points, strict=True), *starts], key=lambda point: point[0])
    return [x - zero for x, _ in both], [y for _, y in both]


def _first_time(source: RunSource, since: float) -> float:
    times = source.train["time"]
    return next((float(each) for each in times if each is not None and each >= since), 0.0)


def heat_map(source: RunSource, what: str) -> dict[str, Any]:
    """Ranks × time as rows of numbers with three digits: what a colour can show."""
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
    """The points of which both numbers are known."""
    pairs = [(a, b) for a, b in zip(xs, ys, strict=True) if a is not None and b is not None]
    return [a for a, _ in pairs], [b for _, b in pairs]


def _round_points(points: Points) -> list[list[float | None]]:
    return [
        [_round_digits(each, 10) for each in points[0]],
        [_round_digits(each, 6) for each in points[1]],
    ]


def _round_digits(value: float | None, digits: int = 3) -> float | None:
    """Fewer digits are fewer bytes; what JSON has no word for is left out."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")
