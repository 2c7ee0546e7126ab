"""The plots of a report, each only where there is something to draw."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import mean, median
from typing import Any

from allranks.core.json_numbers import finite_number
from allranks.core.plots import LineSeries, bar_plot, heat_plot, line_plot
from allranks.observe.report.training_summary import diverged_losses
from allranks.observe.view.heatmap_data import HeatMatrix, heatmap, heatmap_kinds
from allranks.observe.view.metric_columns import MetricColumns, fit_start, thin
from allranks.observe.view.run_source import RunSource
from allranks.observe.view.step_phases import phases_over_time

Units = Sequence[tuple[float, str]]

MOST_POINTS = 360
"""Of one line."""
MOST_LINES = 6
"""Nodes drawn in one plot; of more the busiest, a middle one and the idlest are."""
SAMPLES = 8000
"""Approximate number of stretches over all nodes; the highest samples of each are kept."""
BARS = 20
COLUMNS = 160
NARROW, WIDE, TALL = 520, 1060, 270
"""Pixels, near those at which the page shows them, so that all texts have one size."""
_HEATS = ("gpu", "wait")
PLAIN: Units = ((1.0, ""),)
BYTES: Units = ((2**30, "GiB"), (2**20, "MiB"))
RATES: Units = ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"))
_OF_NODES: tuple[tuple[str, str, str, Units, tuple[str, ...]], ...] = (
    ("cpu", "CPUs busy", "per node", PLAIN, ("cpu",)),
    ("memory", "Memory", "per node", BYTES, ("memory",)),
    ("network", "Network", "in and out, per node", RATES, ("net_in", "net_out")),
)
"""(id, title, what of, units, the values of a sample that add up to it)."""
STEEP = 20.0
"""A loss that falls by more than this factor is drawn on a logarithmic axis."""
_SCALES = {"gpu": (100.0, "%")}


@dataclass(frozen=True)
class ReportPlot:
    """One plot, as SVG text."""

    id: str
    svg: str


def report_plots(source: RunSource) -> list[ReportPlot]:
    """Return the plots in the order in which they are shown."""
    return [*_training(source), *_nodes(source), *_heats(source)]


def _training(source: RunSource) -> Iterator[ReportPlot]:
    """Yield plots of the training; of a script that trains several times, of the last training."""
    since = fit_start(source)
    losses = [
        *_curve(source.train, "train_loss", "training", since),
        *_curve(source.val, "val_loss", "validation", since, points=True),
    ]
    if losses:
        how = {"log_y": _steep(losses), "stretch": _lost(source)}
        yield ReportPlot("loss", _lines(losses, x="step", title="Loss", **how))
    for name, word in (("tokens_per_second", "tokens"), ("samples_per_second", "samples")):
        lines = _curve(source.train, name, word, since)
        if lines:
            svg = _lines(lines, x="step", y=f"{word} per second", title="Throughput", zero=True)
            yield ReportPlot("throughput", svg)
            break
    yield from _phases(*phases_over_time(source, BARS, source.train.first_since(since)))


def _lost(source: RunSource) -> tuple[float, float, str] | None:
    """Return the steps from which on the training loss is not finite, to the last step."""
    since, last = diverged_losses(source).get("train_loss"), source.train.last("step")
    return (
        None if since is None or last is None else (since, last, f"not finite since step {since:,}")
    )


def _phases(steps: Sequence[float], parts: Mapping[str, Sequence[float]]) -> Iterator[ReportPlot]:
    sums = [sum(column) for column in zip(*parts.values(), strict=True)]
    if not steps or not any(sums):
        return
    factor, unit = (1e3, "ms") if max(sums) < 1 else (1.0, "seconds")
    svg = bar_plot(
        [f"{step:,.0f}" for step in steps],
        {name: _over(values, 1 / factor) for name, values in parts.items()},
        x="step",
        y=f"{unit}, mean over the ranks",
        title="A step",
        width=NARROW,
        height=TALL,
    )
    yield ReportPlot("phases", svg)


def _steep(lines: Sequence[LineSeries]) -> bool:
    values = [value for line in lines for value in line.ys if value is not None]
    later = [value for line in lines for value in line.ys[len(line.ys) // 2 :] if value is not None]
    return bool(later) and min(values) > 0 and max(values) > STEEP * median(later)


def _lines(lines: Sequence[LineSeries], **how: Any) -> str:
    return line_plot(lines, width=NARROW, height=TALL, **how)


def _curve(
    columns: MetricColumns, name: str, shown: str, since: float, *, points: bool = False
) -> list[LineSeries]:
    begin = columns.first_since(since)
    xs, ys = thin(columns.part("step", begin), columns.part(name, begin), MOST_POINTS)
    few = points and len(xs) <= 40
    return [LineSeries(shown, xs, ys, points=few)] if xs else []


def _heats(source: RunSource) -> Iterator[ReportPlot]:
    known = heatmap_kinds(source)
    for kind in _HEATS:
        if kind in known:
            found = heatmap(source, kind, COLUMNS, whole=True)
            if len(found.rows) > 1 or kind == "gpu":
                yield ReportPlot(f"heat-{kind}", _heat(kind, found))


def _heat(kind: str, found: HeatMatrix) -> str:
    scale, unit = _SCALES.get(kind, (1.0, found.unit))
    values = [[None if each is None else each * scale for each in row] for row in found.values]
    return heat_plot(
        found.rows,
        found.times,
        values,
        low=found.low * scale,
        high=found.high * scale,
        begin=found.begin,
        unit=unit,
        title=found.title,
        breaks=found.breaks,
        width=WIDE,
    )


@dataclass(frozen=True)
class _Track:
    """One value of one host over the run; None between two attempts."""

    host: str
    times: Sequence[float]
    values: Sequence[float | None]

    @property
    def mean(self) -> float:
        known = [value for value in self.values if value is not None]
        return mean(known) if known else 0.0


def _nodes(source: RunSource) -> Iterator[ReportPlot]:
    rows = _rows(source)
    for key, title, about, units, names in _OF_NODES:
        tracks = [_track(host, attempts, names) for host, attempts in rows.items()]
        top = max((value or 0.0 for track in tracks for value in track.values), default=0.0)
        if top > 0:
            size, unit = next(((size, unit) for size, unit in units if top >= size), units[-1])
            lines = [LineSeries(t.host, t.times, _over(t.values, size)) for t in _some(tracks)]
            y = f"{unit} {about}".strip()
            svg = _lines(lines, x="since the start", y=y, title=title, time_x=True, zero=True)
            yield ReportPlot(key, svg)


def _over(values: Sequence[float | None], size: float) -> list[float | None]:
    return [None if value is None else value / size for value in values]


def _value(row: Mapping[str, Any], names: Sequence[str]) -> float | None:
    """Return the sum of the values that are known."""
    known = [each for name in names if (each := finite_number(row.get(name))) is not None]
    return sum(known) if known else None


def _rows(source: RunSource) -> dict[str, list[list[dict[str, Any]]]]:
    """Return samples of each host with all peaks, one list per attempt; times count from the first sample."""
    nodes = [node for each in source.attempts.values() for node in each.nodes.values()]
    most = max(min(SAMPLES // max(len(nodes), 1), MOST_POINTS), 40)
    begin = _begin(source)
    found: dict[str, list[list[dict[str, Any]]]] = {}
    for node in nodes:
        timed = [
            {**row, "time": row["time"] - begin}
            for row in _highest(node.samples, -(-len(node.samples) // most) or 1)
            if finite_number(row.get("time"))
        ]
        if timed:
            found.setdefault(node.host, []).append(timed)
    return found


def _highest(rows: Sequence[dict[str, Any]], length: int) -> Iterator[dict[str, Any]]:
    """Yield from each stretch of rows the first, and the highest in each of the drawn values."""
    rest = iter(rows)
    while stretch := list(islice(rest, length)):
        places = {0}
        for *_, names in _OF_NODES:
            values = [_value(row, names) or 0.0 for row in stretch]
            places.add(values.index(max(values)))
        yield from (stretch[place] for place in sorted(places))


def _track(host: str, attempts: list[list[dict[str, Any]]], names: Sequence[str]) -> _Track:
    """Return one line with gaps between the attempts."""
    most = max(MOST_POINTS // len(attempts) // 2, 20)
    times: list[float] = []
    values: list[float | None] = []
    for rows in attempts:
        xs, ys = thin([row["time"] for row in rows], [_value(row, names) for row in rows], most)
        if values and xs:
            times.append(xs[0])
            values.append(None)
        times += xs
        values += ys
    return _Track(host, times, values)


def _begin(source: RunSource) -> float:
    """Return the time of the first sample."""
    firsts = [
        float(node.samples[0].get("time") or 0.0)
        for attempt in source.attempts.values()
        for node in attempt.nodes.values()
        if len(node.samples)
    ]
    return min(firsts, default=0.0)


def _some(tracks: list[_Track]) -> list[_Track]:
    if len(tracks) <= MOST_LINES:
        return tracks
    order = sorted(tracks, key=lambda track: track.mean, reverse=True)
    chosen = {"highest": order[0], "median": order[len(order) // 2], "lowest": order[-1]}
    return [_Track(f"{what}: {t.host}", t.times, t.values) for what, t in chosen.items()]
