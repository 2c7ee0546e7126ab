"""Measure one point of a study: by its metrics, by what the script prints, or by its wall time."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any, TypeVar

from allranks.core.json_numbers import finite_number
from allranks.errors import AllranksError, UsageError
from allranks.observe.view.metric_columns import window_steps
from allranks.observe.view.node_views import gpu_of_ranks
from allranks.observe.view.run_source import RunSource
from allranks.observe.view.step_phases import phases_of
from allranks.observe.view.stragglers import own_work
from allranks.runs.atomic_files import parse_stamp
from allranks.runs.attempt import Attempt
from allranks.runs.log_lines import read_logs
from allranks.runs.metrics_tables import Metrics
from allranks.runs.run_folder import Run

METRICS, METRIC, WALL_TIME = "metrics.jsonl", "--metric", "wall time"
"""By what a point is measured."""
WARM_UP = 0.2
"""The share of the windows that is left out at the beginning: start, compilation and caches belong to no
step that follows. At least one is."""
_T = TypeVar("_T")


@dataclass(frozen=True)
class Measurement:
    """The measured speed of one point."""

    rate: float
    """Units a second over all ranks."""
    unit: str
    """samples, tokens, steps, runs, or units where the metric does not name them."""
    source: str
    """metrics.jsonl, --metric or wall time."""
    step_seconds: float | None = None
    batch: float | None = None
    """Samples of a step over all ranks."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """Seconds of a step by phase."""
    waiting: float | None = None
    """Seconds of a step by which the slowest rank's own work is longer than the median rank's."""
    gpu_use: float | None = None
    mfu: float | None = None
    windows: int = 1
    """How many were measured."""
    seconds: float | None = None
    """How long that took; None when unknown."""
    uncertainty: float = 0.0
    """The error of the rate, as a share of it: by how the windows differ, or by a coarse clock."""

    @property
    def timed(self) -> bool:
        """Return whether only a time is known, not how much work was done in it."""
        return self.source == WALL_TIME or (self.source == METRIC and self.step_seconds is not None)


def without_warm_up(values: Sequence[_T]) -> Sequence[_T]:
    """Return the values without the warm-up; a single value is kept."""
    return values[max(1, math.ceil(len(values) * WARM_UP)) :] or values[-1:]


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of the mean as a share of it; 0 for a single value."""
    if len(values) < 2:
        return 0.0
    return statistics.stdev(values) / math.sqrt(len(values)) / statistics.fmean(values)


@dataclass(frozen=True)
class _Window:
    """A line of metrics with a speed."""

    row: Mapping[str, Any]
    steps: float

    def number(self, name: str) -> float:
        """Return a number of the line; 0 where it has none."""
        return finite_number(self.row.get(name)) or 0.0

    @property
    def rate(self) -> float:
        return self.number("samples_per_second") or self.number("tokens_per_second")

    @property
    def seconds(self) -> float:
        """Return the length of the window; 0 when unknown."""
        return self.number("step_seconds") * self.steps


def measure_by_windows(run: Run) -> Measurement | None:
    """Measure by the lines of training steps; None where there are none."""
    windows = _windows(run)
    if not windows:
        return None
    kept, batch = without_warm_up(windows), _batch(windows)
    rate, seconds = _rate(kept), sum(each.seconds for each in kept)
    unit = "samples" if windows[-1].number("samples_per_second") else "tokens"
    source = RunSource(run)
    source.refresh()
    return Measurement(
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
    steps, fits = ([finite_number(row.get(name)) for row in rows] for name in ("step", "fit"))
    pairs = zip(rows, window_steps(steps, fits), strict=True)
    found = [_Window(row, count) for row, count in pairs]
    return [each for each in found if each.rate and each.number("step")]


def _rate(kept: Sequence[_Window]) -> float:
    """Return all work over all time, since windows differ in length; without times every batch counts as
    full.
    """
    timed = all(each.seconds for each in kept)
    times = [each.seconds if timed else each.steps / each.rate for each in kept]
    work = sum(each.rate * time for each, time in zip(kept, times, strict=True))
    return work / sum(times)


def _batch(windows: Sequence[_Window]) -> float | None:
    """Return the samples of a step: speed times step time, or times the clock between lines."""
    found = [each.rate * each.number("step_seconds") for each in windows]
    if not any(found):
        pairs = pairwise(windows)
        clocks = [(each, each.number("time") - before.number("time")) for before, each in pairs]
        found = [each.rate * seconds / each.steps for each, seconds in clocks]
    known = [value for value in found if value > 0]
    return float(round(statistics.median(known))) if known else None


def _mean(kept: Sequence[_Window], name: str) -> float | None:
    """Return the mean over steps, not over windows."""
    known = [
        (value, each.steps)
        for each in kept
        if (value := finite_number(each.row.get(name))) is not None
    ]
    weight = sum(count for _, count in known)
    return sum(value * count for value, count in known) / weight if weight else None


def _waiting(source: RunSource, kept: Sequence[_Window]) -> float | None:
    """Return the mean over windows of the slowest rank's own work less the median rank's."""
    since, until = kept[0].number("step"), kept[-1].number("step")
    lines = [line for attempt in source.attempts.values() for line in attempt.steps]
    measured = [
        line for line in lines if since <= (finite_number(line.get("step")) or 0.0) <= until
    ]
    works = [[each for each in own_work(line) if each is not None] for line in measured]
    spreads = [max(work) - statistics.median(work) for work in works if len(work) > 1]
    return statistics.fmean(spreads) if spreads else None


def _gpu_use(source: RunSource, kept: Sequence[_Window]) -> float | None:
    """Return the use of the GPUs that the ranks use, where known: a node may have others."""
    since, until = kept[0].number("time"), kept[-1].number("time")
    own = {(n, *gpu) for n, one in source.attempts.items() for gpu in gpu_of_ranks(one).values()}
    uses = [
        use
        for row in Metrics(source.run.path).rows("gpus")
        if since <= (finite_number(row.get("time")) or 0.0) <= until
        if (use := finite_number(row.get("use"))) is not None
        if not own or (row["attempt"], row["node"], row["gpu"]) in own
    ]
    return statistics.fmean(uses) if uses else None


SECONDS = "seconds"
"""The name of a metric's group that is the time of a step, not a speed."""


def check_metric(pattern: str | None) -> None:
    """Refuse a regular expression that cannot be used."""
    if pattern is None:
        return
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        raise UsageError(f"--metric '{pattern}' is not a regular expression: {error}.") from None
    if groups != 1:
        raise UsageError(
            f"--metric '{pattern}' has {groups} groups; it needs one, around the number:\n"
            r"--metric 'samples/s: ([\d.]+)'"
        )


def measure_run(run: Run, *, metric: str | None, weak: bool, ranks: int) -> Measurement:
    """Measure by --metric, by the run's metrics, else by its wall time; raise AllranksError without any."""
    if metric:
        return _measure_by_metric(run, re.compile(metric), weak, ranks)
    return measure_by_windows(run) or _measure_by_wall_time(run, weak)


def _measure_by_metric(run: Run, pattern: re.Pattern[str], weak: bool, ranks: int) -> Measurement:
    lines = read_logs(run, ranks=[0]) if _has_logs(run) else read_logs(run)
    found = [match[1] for line in lines if (match := pattern.search(line.text))]
    values = [value for text in found if (value := _value(text)) is not None]
    if not values:
        seen = f"'{found[0]}' is no number above 0" if found else "no line of rank 0 matches it"
        raise AllranksError(f"--metric '{pattern.pattern}': {seen}. Look: allranks logs {run.id}")
    kept = without_warm_up(values)
    mean = statistics.fmean(kept)
    if SECONDS not in pattern.groupindex:
        rate, unit = mean, next(iter(pattern.groupindex), "units").replace("_", " ")
    else:  # in a weak study every rank brings its own work, so the work of a step grows with them
        rate, unit = (ranks if weak else 1) / mean, "steps"
    return Measurement(
        rate,
        unit,
        METRIC,
        step_seconds=mean if SECONDS in pattern.groupindex else None,
        windows=len(kept),
        uncertainty=standard_error(kept),
    )


def _has_logs(run: Run) -> bool:
    return any(attempt.log_files() for attempt in run.attempts)


def _value(text: str | None) -> float | None:
    try:
        value = float((text or "").replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None


def _measure_by_wall_time(run: Run, weak: bool) -> Measurement:
    if weak:
        raise AllranksError(
            "it has no metrics.jsonl, and wall time alone cannot measure weak scaling. "
            r"Give --metric 'samples/s: ([\d.]+)', with what the script prints."
        )
    last = run.last_attempt
    start, end = (_first_rank_start(last), last.end) if last else (None, None)
    if start is None or end is None or end <= start:
        raise AllranksError("it has no metrics.jsonl, and its run folder has no times.")
    seconds = (end - start).total_seconds()
    # A stamp without a fraction was written by a clock of whole seconds.
    error = 0.0 if end.microsecond else 1 / seconds
    return Measurement(1 / seconds, "runs", WALL_TIME, seconds=seconds, uncertainty=error)


def _first_rank_start(attempt: Attempt) -> datetime | None:
    """Return when the first rank started, else the start of the attempt."""
    starts = [start for rank in attempt.ranks() if (start := parse_stamp(rank.start))]
    return min(starts, default=attempt.start)
