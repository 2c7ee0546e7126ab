"""Heat maps: what every rank, GPU or node did over the whole time of a run, as one matrix."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from allranks.errors import UsageError, did_you_mean
from allranks.monitor.numbers import real
from allranks.monitor.source import AttemptSource, Source
from allranks.monitor.tracks import Track, tracks

Value = float | None


@dataclass(frozen=True)
class Kind:
    """What a heat map shows."""

    title: str
    unit: str
    measured: str
    """Its name in the files."""
    limit: str = ""
    """The name of what a GPU or node has at most, where that ends the colours."""


GPU_KINDS = {
    "gpu": Kind("GPU use", "", "use"),
    "gpu_memory": Kind("GPU memory", "B", "memory", "memory_total"),
    "power": Kind("GPU power", "W", "power", "power_limit"),
    "temperature": Kind("GPU temperature", "°C", "temperature"),
}
STEP_KINDS = {
    "step": Kind("Time of a step", "s", "step_seconds"),
    "compute": Kind("Computing, per step", "s", "compute_seconds"),
    "wait": Kind("Waiting for other ranks and the network, per step", "s", "communication_seconds"),
    "data": Kind("Waiting for data, per step", "s", "data_seconds"),
}
KINDS = {**GPU_KINDS, "cpu": Kind("CPUs kept busy", "CPUs", "cpu", "cpus"), **STEP_KINDS}


@dataclass
class Heat:
    """A matrix: ``values[row][column]``; None where nothing was measured."""

    rows: list[str]
    """``rank 3``; ``node1`` for CPUs; ``node1 GPU 0`` where no rank is known to use it."""
    times: list[float] = field(default_factory=list)
    """Seconds since 1970, one per column; attempts follow each other without the time between them."""
    values: list[list[Value]] = field(default_factory=list)
    unit: str = ""
    low: float = 0.0
    high: float = 1.0
    """The ends of the colour scale."""
    title: str = ""
    breaks: list[int] = field(default_factory=list)
    """The columns with which a later attempt begins."""


def kinds(source: Source) -> list[str]:
    """Which heat maps this run has numbers for."""
    found = {name for attempt in source.attempts.values() for name in _measured(attempt)}
    return [name for name in KINDS if name in found]


def heat(source: Source, what: str, columns: int = 240) -> Heat:
    """The heat map of that kind over all attempts; without rows when it was not measured.

    Each value is the mean over its column. Of long files evenly spaced lines are read, not all.
    """
    if what not in KINDS:
        raise UsageError(
            f"There is no heat map '{what}'.{did_you_mean(what, KINDS)}\nThere are: {', '.join(KINDS)}."
        )
    kind = KINDS[what]
    lives = [tracks(attempt, kind.measured) for _, attempt in sorted(source.attempts.items())]
    lives = [life for life in lives if life]
    rows = sorted({row for life in lives for track in life for row in track.rows}, key=_in_order)
    made = Heat(rows, values=[[] for _ in rows], unit=kind.unit, title=kind.title)
    for life, share in zip(lives, _shares(lives, columns), strict=True):
        made.breaks += [len(made.times)] if made.times else []
        _add_columns(made, life, share)
    made.low, made.high = _scale(source, what, made)
    return made


def _measured(attempt: AttemptSource) -> Iterator[str]:
    """From the ends of each file: enough to know what is in it."""
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


def _shares(lives: Sequence[Sequence[Track]], columns: int) -> list[int]:
    """How many columns each attempt gets: by its number of lines, and one at least."""
    sizes = [max(len(track.lines) for track in life) for life in lives]
    total = sum(sizes)
    return sizes if total <= columns else [max(size * columns // total, 1) for size in sizes]


def _add_columns(made: Heat, life: Sequence[Track], share: int) -> None:
    """Cut the time of one attempt where its longest track has equally many lines in each column."""
    longest = max(life, key=lambda track: len(track.lines))
    times = sorted(time for time, _ in longest.lines)
    cuts = [len(times) * each // share for each in range(1, share)]
    # Halfway between two lines, so that nodes that sample a moment apart fall into the same column.
    edges = [(times[cut - 1] + times[cut]) / 2 for cut in cuts]
    made.times += [times[cut - 1] for cut in [*cuts, len(times)]]
    for row, means in zip(made.values, _means(made.rows, life, edges), strict=True):
        row += _filled(means)


def _means(rows: list[str], life: Sequence[Track], edges: list[float]) -> Iterator[list[Value]]:
    index = {row: place for place, row in enumerate(rows)}
    width = len(edges) + 1
    sums = [[0.0] * width for _ in rows]
    counts = [[0] * width for _ in rows]
    for track in life:
        into = [(sums[index[row]], counts[index[row]]) for row in track.rows]
        for time, values in track.lines:
            column = bisect_right(edges, time)
            for (total, count), value in zip(into, values, strict=True):
                if value == value:
                    total[column] += value
                    count[column] += 1
    for total, count in zip(sums, counts, strict=True):
        yield [
            round(each / number, 6) if number else None
            for each, number in zip(total, count, strict=True)
        ]


def _filled(values: list[Value]) -> list[Value]:
    """A hole of one column between two others is a sample that came a moment late, no silence."""
    last = len(values) - 1
    return [
        values[place - 1]
        if each is None and 0 < place < last and values[place + 1] is not None
        else each
        for place, each in enumerate(values)
    ]


def _scale(source: Source, what: str, made: Heat) -> tuple[float, float]:
    """Where the colours begin and end: what the machine has, else what was seen."""
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


def _limit(source: Source, what: str) -> float | None:
    name = KINDS[what].limit
    nodes = [node for attempt in source.attempts.values() for node in attempt.nodes.values()]
    gpus = [gpu for node in nodes for gpu in node.gpus.values()]
    about = [node.facts for node in nodes] if what == "cpu" else gpus
    return max((found for facts in about if (found := real(facts.get(name)))), default=None)


def _in_order(row: str) -> tuple[tuple[int, str], ...]:
    """``rank 10`` after ``rank 9``, ``node10`` after ``node9``."""
    parts = re.split(r"(\d+)", row)
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in parts)
