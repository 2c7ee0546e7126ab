"""The data of heat maps: every rank, GPU or node over the time of a run, as one matrix."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from allranks.core.json_numbers import finite_number
from allranks.errors import UsageError, did_you_mean
from allranks.observe.view.node_views import gpu_of_ranks
from allranks.observe.view.run_source import GPU_VALUES, AttemptSource, RunSource
from allranks.runs.metrics_tables import RANK_LISTS
from allranks.runs.node_samples import NodeSource

_WIDTH = 1 + len(GPU_VALUES)
_Owners = dict[tuple[int, int], list[int]]


@dataclass
class Track:
    """Lines of one file: ``values[i]`` of each belongs to ``rows[i]``; NaN where nothing is known."""

    rows: list[str]
    lines: list[tuple[float, Sequence[float]]] = field(default_factory=list)
    """(time, values), in order."""


def tracks(attempt: AttemptSource, name: str) -> list[Track]:
    """Return the tracks of a measured value by its name in the files: ``use``, ``cpu``, ``step_seconds``."""
    if name in RANK_LISTS:
        found = _ranks(attempt, RANK_LISTS.index(name))
    elif name == "cpu":
        found = _nodes(attempt)
    else:
        found = _gpus(attempt, GPU_VALUES.index(name))
    return [track for track in found if track.rows and track.lines]


def _ranks(attempt: AttemptSource, place: int) -> list[Track]:
    by_size: dict[int, Track] = {}
    for time, values in attempt.windows().lines():
        size = len(values) // len(RANK_LISTS)
        if size not in by_size:
            by_size[size] = Track([f"rank {rank}" for rank in range(size)])
        by_size[size].lines.append((time, values[place * size : (place + 1) * size]))
    return list(by_size.values())


def _nodes(attempt: AttemptSource) -> list[Track]:
    return [
        Track([node.host], [(time, values[:1]) for time, values in _own_lines(attempt, node)])
        for node in attempt.nodes.values()
    ]


def _own_lines(attempt: AttemptSource, node: NodeSource) -> list[tuple[float, Sequence[float]]]:
    return list(attempt.samples(node.node, min(node.files)).lines())


def _gpus(attempt: AttemptSource, place: int) -> list[Track]:
    owners: _Owners = {}
    for rank, where in gpu_of_ranks(attempt).items():
        owners.setdefault(where, []).append(rank)
    return [
        track
        for node in attempt.nodes.values()
        for local_rank in node.files
        for track in _gpu_file(attempt, node, local_rank, place, owners)
    ]


def _gpu_file(
    attempt: AttemptSource, node: NodeSource, local_rank: int, place: int, owners: _Owners
) -> list[Track]:
    """Return a track for each set of GPUs in the file: one, unless GPUs appeared or vanished."""
    made: dict[bytes, tuple[Track, list[int]]] = {}
    for time, values in attempt.samples(node.node, local_rank).lines():
        numbers = values[1::_WIDTH]
        key = numbers.tobytes()
        if key not in made:
            named = [
                (slot, row)
                for slot, number in enumerate(numbers)
                for row in _rows(owners, node, int(number))
            ]
            made[key] = Track([row for _, row in named]), [slot for slot, _ in named]
        track, slots = made[key]
        found = values[2 + place :: _WIDTH]
        track.lines.append((time, [found[slot] for slot in slots]))
    return [track for track, _ in made.values()]


def _rows(owners: _Owners, node: NodeSource, gpu: int) -> list[str]:
    """Return the ranks on a GPU; GPUs without a rank are left out as soon as any rank's GPU is known."""
    if not owners:
        return [f"{node.host} GPU {gpu}"]
    return [f"rank {rank}" for rank in owners.get((node.node, gpu), ())]


Value = float | None
Span = tuple[float, float]
_SILENCE = 4.0
"""A line that comes later than this multiple of the usual interval covers only its own column."""


@dataclass(frozen=True)
class HeatmapKind:
    """What a heat map shows."""

    title: str
    unit: str
    measured: str
    """Its name in the files."""
    limit: str = ""
    """The name of what a GPU or node has at most, where that ends the colours."""


GPU_KINDS = {
    "gpu": HeatmapKind("GPU use", "", "use"),
    "gpu_memory": HeatmapKind("GPU memory", "B", "memory", "memory_total"),
    "power": HeatmapKind("GPU power", "W", "power", "power_limit"),
    "temperature": HeatmapKind("GPU temperature", "°C", "temperature"),
}
STEP_KINDS = {
    "step": HeatmapKind("Time of a step", "s", "step_seconds"),
    "compute": HeatmapKind("Computing, per step", "s", "compute_seconds"),
    "wait": HeatmapKind(
        "Waiting for other ranks and the network, per step", "s", "communication_seconds"
    ),
    "data": HeatmapKind("Waiting for data, per step", "s", "data_seconds"),
}
KINDS = {**GPU_KINDS, "cpu": HeatmapKind("CPUs kept busy", "CPUs", "cpu", "cpus"), **STEP_KINDS}


@dataclass
class HeatMatrix:
    """A matrix: ``values[row][column]``; None where nothing was measured."""

    rows: list[str]
    """``rank 3``; ``node1`` for CPUs; ``node1 GPU 0`` where no rank is known to use it."""
    times: list[float] = field(default_factory=list)
    """The end of each column in seconds since 1970; attempts follow each other without the time between."""
    values: list[list[Value]] = field(default_factory=list)
    unit: str = ""
    low: float = 0.0
    high: float = 1.0
    """The ends of the colour scale."""
    title: str = ""
    begin: float = 0.0
    """When the first column begins."""
    breaks: list[int] = field(default_factory=list)
    """The columns with which a later attempt begins."""


def heatmap_kinds(source: RunSource) -> list[str]:
    """Return the heat maps that this run has numbers for."""
    found = {name for attempt in source.attempts.values() for name in _measured(attempt)}
    return [name for name in KINDS if name in found]


def heatmap(source: RunSource, what: str, columns: int = 240, *, whole: bool = False) -> HeatMatrix:
    """Return the heat map of that kind over all attempts; without rows when it was not measured.

    All columns are about equally long; each value is the mean over its column. Of long files evenly
    spaced lines are read, not all. ``whole``: the columns begin and end with all that was measured, so
    that maps of several kinds have the same.
    """
    if what not in KINDS:
        raise UsageError(
            f"There is no heat map '{what}'.{did_you_mean(what, KINDS)}\nThere are: {', '.join(KINDS)}."
        )
    kind = KINDS[what]
    attempts = [attempt for _, attempt in sorted(source.attempts.items())]
    all_tracks = [tracks(attempt, kind.measured) for attempt in attempts]
    rows = sorted(
        {row for attempt_tracks in all_tracks for track in attempt_tracks for row in track.rows},
        key=_in_order,
    )
    made = HeatMatrix(rows, values=[[] for _ in rows], unit=kind.unit, title=kind.title)
    spans = (
        [_attempt_span(attempt) for attempt in attempts]
        if whole
        else [_span(attempt_tracks) for attempt_tracks in all_tracks]
    )
    most = columns if whole else min(columns, sum(map(_lines, all_tracks)))
    for attempt_tracks, span, share in zip(all_tracks, spans, _shares(spans, most), strict=True):
        if span is not None:
            if made.times:
                made.breaks.append(len(made.times))
            else:
                made.begin = span[0]
            _add_columns(made, attempt_tracks, span, share)
    made.low, made.high = _scale(source, what, made)
    return made


def _measured(attempt: AttemptSource) -> Iterator[str]:
    """Yield the kinds that the first and last lines of the files contain."""
    ends = [attempt.steps[place] for place in (0, -1) if len(attempt.steps)]
    for name, kind in STEP_KINDS.items():
        if any(_some(row.get(kind.measured)) for row in ends):
            yield name
    for node in attempt.nodes.values():
        sample = node.latest()
        if sample.get("cpu") is not None:
            yield "cpu"
        for gpu in sample.get("gpus") or ():
            yield from (
                name for name, kind in GPU_KINDS.items() if gpu.get(kind.measured) is not None
            )


def _some(values: object) -> bool:
    return isinstance(values, list) and any(each is not None for each in values)


def _lines(attempt_tracks: Sequence[Track]) -> int:
    return max((len(track.lines) for track in attempt_tracks), default=0)


def _span(attempt_tracks: Sequence[Track]) -> Span | None:
    """Return the first and the last time at which this was measured; None when it was not."""
    times = [time for track in attempt_tracks for time, _ in track.lines]
    return (min(times), max(times)) if times else None


def _attempt_span(attempt: AttemptSource) -> Span | None:
    """Return the first and the last time of anything measured in an attempt."""
    files = [
        attempt.steps,
        *(file for node in attempt.nodes.values() for file in node.files.values()),
    ]
    ends = [
        finite_number(file[place].get("time")) for file in files if len(file) for place in (0, -1)
    ]
    times = [time for time in ends if time is not None]
    return (min(times), max(times)) if times else None


def _shares(spans: Sequence[Span | None], columns: int) -> list[int]:
    """Return the columns of each attempt in proportion to its time, at least one."""
    lengths = [span[1] - span[0] if span else 0.0 for span in spans]
    total = sum(lengths)
    if not 0 < total < math.inf:
        return [1] * len(spans)
    return [max(int(length / total * columns), 1) for length in lengths]


def _add_columns(made: HeatMatrix, attempt_tracks: Sequence[Track], span: Span, share: int) -> None:
    """Split the time of one attempt into columns; each is named by its end."""
    begin, end = span
    edges = [begin + (end - begin) * place / share for place in range(1, share)]
    made.times += [*edges, end]
    for row, means in zip(made.values, _means(made.rows, attempt_tracks, edges, end), strict=True):
        row += means


def _means(
    rows: list[str], attempt_tracks: Sequence[Track], edges: list[float], end: float
) -> Iterator[list[Value]]:
    index = {row: place for place, row in enumerate(rows)}
    width = len(edges) + 1
    sums = [[0.0] * width for _ in rows]
    counts = [[0] * width for _ in rows]
    for track in attempt_tracks:
        into = [(sums[index[row]], counts[index[row]]) for row in track.rows]
        covered = _covered_columns([time for time, _ in track.lines], edges, end)
        for columns, (_, values) in zip(covered, track.lines, strict=True):
            for (total, count), value in zip(into, values, strict=True):
                if value == value:
                    for column in columns:
                        total[column] += value
                        count[column] += 1
    for total, count in zip(sums, counts, strict=True):
        yield [
            round(each / number, 6) if number else None
            for each, number in zip(total, count, strict=True)
        ]


def _covered_columns(times: list[float], edges: list[float], end: float) -> Iterator[range]:
    """Yield the columns that each line covers: those since the line before it; after a gap its own."""
    usual = median([after - before for before, after in pairwise(times)] or [0.0])
    before: float | None = None
    for place, time in enumerate(times):
        own = bisect_left(edges, time)
        follows = before is not None and time - before <= _SILENCE * usual
        first = bisect_left(edges, before) + 1 if follows and before is not None else own
        lasts = place == len(times) - 1 and end - time <= usual  # its next one is still to come
        yield range(min(first, own), (len(edges) if lasts else own) + 1)
        before = time


def _scale(source: RunSource, what: str, made: HeatMatrix) -> tuple[float, float]:
    """Return the ends of the colour scale: what the machine has, else what was seen."""
    seen = sorted(each for row in made.values for each in row if each is not None)
    if what == "gpu" or not seen:
        return 0.0, 1.0
    if what == "temperature":
        return seen[0], max(seen[-1], seen[0] + 1)
    if limit := _limit(source, what):
        return 0.0, limit
    # One slow checkpoint must not make everything else look the same, nor noise look like news.
    usual = max(seen[int(0.98 * (len(seen) - 1))], 1.5 * seen[len(seen) // 2])
    return 0.0, max(usual, 0.001)


def _limit(source: RunSource, what: str) -> float | None:
    name = KINDS[what].limit
    nodes = [node for attempt in source.attempts.values() for node in attempt.nodes.values()]
    gpus = [gpu for node in nodes for gpu in node.gpus.values()]
    about = [node.facts for node in nodes] if what == "cpu" else gpus
    return max(
        (found for facts in about if (found := finite_number(facts.get(name)))), default=None
    )


def _in_order(row: str) -> tuple[tuple[int, str], ...]:
    """Return a sort key with ``rank 10`` after ``rank 9``, ``node10`` after ``node9``."""
    parts = re.split(r"(\d+)", row)
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in parts)
