"""What a Trainer's metrics tell of a point: lines about windows of steps, and what the ranks did in them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from allranks.observe.scaling.achieved import METRICS, Achieved, settled, standard_error
from allranks.observe.view.fit_steps import window_steps
from allranks.observe.view.json_numbers import real
from allranks.observe.view.node_views import gpu_of_ranks
from allranks.observe.view.run_source import RunSource
from allranks.observe.view.step_phases import phases_of
from allranks.observe.view.stragglers import own_work
from allranks.runs.metrics_tables import Metrics
from allranks.runs.run import Run


@dataclass(frozen=True)
class _Window:
    """A line of metrics with a speed."""

    row: Mapping[str, Any]
    steps: float

    def number(self, name: str) -> float:
        """A number of the line; 0 where it has none."""
        return real(self.row.get(name)) or 0.0

    @property
    def rate(self) -> float:
        return self.number("samples_per_second") or self.number("tokens_per_second")

    @property
    def seconds(self) -> float:
        """How long it was; 0 where the line does not tell."""
        return self.number("step_seconds") * self.steps


def by_windows(run: Run) -> Achieved | None:
    """By the lines of training steps; None where there are none."""
    windows = _windows(run)
    if not windows:
        return None
    kept, batch = settled(windows), _batch(windows)
    rate, seconds = _rate(kept), sum(each.seconds for each in kept)
    unit = "samples" if windows[-1].number("samples_per_second") else "tokens"
    source = RunSource(run)
    source.refresh()
    return Achieved(
        rate,
        unit,
        METRICS,
        step_seconds=_mean(kept, "step_seconds") or (batch / rate if batch else None),
        batch=batch if unit == "samples" else None,
        phases=phases_of([each.row for each in kept], [each.steps for each in kept]),
        waiting=_waiting(source, kept),
        gpu_use=_gpu_use(source, kept),
        mfu=_mean(kept, "mfu"),
        windows=len(kept),
        seconds=seconds or None,
        uncertainty=standard_error([each.rate for each in kept]),
    )


def _windows(run: Run) -> list[_Window]:
    rows = list(Metrics(run.path).rows("train"))
    steps, fits = ([real(row.get(name)) for row in rows] for name in ("step", "fit"))
    pairs = zip(rows, window_steps(steps, fits), strict=True)
    found = [_Window(row, count) for row, count in pairs]
    return [each for each in found if each.rate and each.number("step")]


def _rate(kept: Sequence[_Window]) -> float:
    """All work over all time: windows differ in length. Without their times every batch counts as full."""
    told = all(each.seconds for each in kept)
    times = [each.seconds if told else each.steps / each.rate for each in kept]
    work = sum(each.rate * time for each, time in zip(kept, times, strict=True))
    return work / sum(times)


def _batch(windows: Sequence[_Window]) -> float | None:
    """Samples of a step: speed times its time, where that is not written from the clock between lines."""
    found = [each.rate * each.number("step_seconds") for each in windows]
    if not any(found):
        pairs = pairwise(windows)
        clocks = [(each, each.number("time") - before.number("time")) for before, each in pairs]
        found = [each.rate * seconds / each.steps for each, seconds in clocks]
    known = [value for value in found if value > 0]
    return float(round(statistics.median(known))) if known else None


def _mean(kept: Sequence[_Window], name: str) -> float | None:
    """Over steps, not over windows."""
    known = [
        (value, each.steps) for each in kept if (value := real(each.row.get(name))) is not None
    ]
    weight = sum(count for _, count in known)
    return sum(value * count for value, count in known) / weight if weight else None


def _waiting(source: RunSource, kept: Sequence[_Window]) -> float | None:
    """The mean over windows of: slowest rank's own work less the median rank's."""
    since, until = kept[0].number("step"), kept[-1].number("step")
    lines = [line for attempt in source.attempts.values() for line in attempt.steps]
    measured = [line for line in lines if since <= (real(line.get("step")) or 0.0) <= until]
    works = [[each for each in own_work(line) if each is not None] for line in measured]
    spreads = [max(work) - statistics.median(work) for work in works if len(work) > 1]
    return statistics.fmean(spreads) if spreads else None


def _gpu_use(source: RunSource, kept: Sequence[_Window]) -> float | None:
    """Of the GPUs that the ranks use, where that can be told: a node may have others."""
    since, until = kept[0].number("time"), kept[-1].number("time")
    own = {(n, *gpu) for n, one in source.attempts.items() for gpu in gpu_of_ranks(one).values()}
    uses = [
        use
        for row in Metrics(source.run.path).rows("gpus")
        if since <= (real(row.get("time")) or 0.0) <= until
        if (use := real(row.get("use"))) is not None
        if not own or (row["attempt"], row["node"], row["gpu"]) in own
    ]
    return statistics.fmean(uses) if uses else None
