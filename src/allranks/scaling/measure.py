"""What one point achieved, read from its run: the speed, what a step's time went to, how even the ranks are.

The first windows are left out: start, compilation and caches belong to no step that follows.
"""

from __future__ import annotations

import math
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from allranks.errors import AllranksError, UsageError
from allranks.monitor.machines import gpu_of_ranks
from allranks.monitor.model import PHASES
from allranks.monitor.source import Source
from allranks.runs.attempts import Attempt
from allranks.runs.files import parse_stamp
from allranks.runs.folder import Run
from allranks.runs.logs import read_logs
from allranks.runs.metrics import Metrics
from allranks.scaling.points import WARM_UP

SECONDS = "seconds"
"""The name of a metric's group that is the time of a step, not a speed."""
METRIC, WALL_TIME = "--metric", "wall time"
_SHORT = 0.5
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Measure:
    """One point, once."""

    rate: float
    """Units a second over all ranks."""
    unit: str
    """samples, tokens, steps, runs, or units where nobody says what the metric counts."""
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
    windows: int = 0
    """How many were measured."""
    window_seconds: float | None = None
    """How long one of them was."""

    @property
    def timed(self) -> bool:
        """Whether a time is all that is known: how much work was done in it, others must say."""
        return self.source == WALL_TIME or (self.source == METRIC and self.step_seconds is not None)

    @property
    def short(self) -> bool:
        """Whether a window was over so soon that reading and writing its numbers counts in it."""
        return (self.window_seconds or _SHORT) < _SHORT


def check_metric(pattern: str) -> None:
    """Refuse an expression that cannot be used, before hours are spent."""
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        raise UsageError(f"--metric '{pattern}' is not a regular expression: {error}.") from None
    if groups != 1:
        raise UsageError(
            f"--metric '{pattern}' has {groups} groups; it needs one, around the number:\n"
            r"--metric 'samples/s: ([\d.]+)'"
        )


def measure(run: Run, *, metric: str | None, weak: bool, ranks: int) -> Measure:
    """What the run achieved: by the metric, by its metrics, else by its wall time."""
    if metric:
        return _by_metric(run, re.compile(metric), weak, ranks)
    rows = _usable(Metrics(run.path).rows("train"))
    if rows:
        return _by_windows(run, rows)
    return _by_wall_time(run, weak)


def settled(values: Sequence[Any]) -> Sequence[Any]:
    """Without the first fifth, and without the first in any case; one alone is all there is."""
    return values[max(1, math.ceil(len(values) * WARM_UP)) :] or values[-1:]


# -- a Trainer's metrics


def _usable(rows: Iterable[Row]) -> list[Row]:
    """Windows with a speed and a number of steps."""
    return [row for row in rows if _rate(row) and _number(row, "step")]


def _rate(row: Row) -> float:
    return _number(row, "samples_per_second") or _number(row, "tokens_per_second")


def _by_windows(run: Run, rows: list[Row]) -> Measure:
    steps = _steps(rows)
    kept = list(settled(list(zip(rows, steps, strict=True))))
    unit = "samples" if _number(rows[-1], "samples_per_second") else "tokens"
    batch = _batch(rows, steps)
    # Windows differ in length: total work over total time, not the mean of the speeds.
    rate = sum(count for _, count in kept) / sum(count / _rate(row) for row, count in kept)
    step_seconds = _mean(kept, "step_seconds") or (batch / rate if batch else None)
    since, until = _number(kept[0][0], "step"), _number(kept[-1][0], "step")
    return Measure(
        rate,
        unit,
        "metrics.jsonl",
        step_seconds=step_seconds,
        batch=batch if unit == "samples" else None,
        phases=_phases(kept),
        waiting=_waiting(run, since, until),
        gpu_use=_gpu_use(run, _number(kept[0][0], "time"), _number(kept[-1][0], "time")),
        mfu=_mean(kept, "mfu"),
        windows=len(kept),
        window_seconds=step_seconds and step_seconds * sum(n for _, n in kept) / len(kept),
    )


def _steps(rows: Sequence[Row]) -> list[float]:
    """Steps of each window; another training in the same run begins at 0 again."""
    steps, before = [], 0.0
    for row in rows:
        at = _number(row, "step")
        steps.append(at - before if at > before else at)
        before = at
    return steps


def _batch(rows: Sequence[Row], steps: Sequence[float]) -> float | None:
    """Samples of a step: speed times its time, where that is not written from the clock between lines."""
    found = [_rate(row) * _number(row, "step_seconds") for row in rows]
    if not any(found):
        times = [_number(row, "time") for row in rows]
        pairs = zip(rows[1:], steps[1:], times, times[1:], strict=False)
        found = [_rate(row) * (end - start) / count for row, count, start, end in pairs]
    known = [value for value in found if value > 0]
    return float(round(statistics.median(known))) if known else None


def _mean(kept: Sequence[tuple[Row, float]], name: str) -> float | None:
    """Over steps, not over windows."""
    known = [(row[name], count) for row, count in kept if isinstance(row.get(name), (int, float))]
    weight = sum(count for _, count in known)
    return sum(value * count for value, count in known) / weight if weight else None


def _phases(kept: Sequence[tuple[Row, float]]) -> dict[str, float]:
    """Of windows that tell all phases, where any does: in the others the rest is all "other"."""
    whole = [(row, count) for row, count in kept if "forward_seconds" in row] or kept
    means = {name: _mean(whole, f"{name}_seconds") for name in PHASES}
    return {name: value for name, value in means.items() if value is not None}


def _waiting(run: Run, since: float, until: float) -> float | None:
    """The mean over windows of: slowest rank's own work less the median rank's."""
    windows: dict[tuple[int, float], list[float]] = defaultdict(list)
    for row in Metrics(run.path).rows("ranks"):
        own = _number(row, "data_seconds") + _number(row, "compute_seconds")
        step = _number(row, "step")
        if since <= step <= until and isinstance(row.get("compute_seconds"), (int, float)):
            windows[int(_number(row, "attempt")), step].append(own)
    spreads = [max(own) - statistics.median(own) for own in windows.values() if len(own) > 1]
    return statistics.fmean(spreads) if spreads else None


def _gpu_use(run: Run, since: float, until: float) -> float | None:
    """Of the GPUs that the ranks use, where that can be told: a node may have others."""
    source = Source(run)
    source.refresh()
    own = {(n, *gpu) for n, one in source.attempts.items() for gpu in gpu_of_ranks(one).values()}
    uses = [
        row["use"]
        for row in Metrics(run.path).rows("gpus")
        if since <= _number(row, "time") <= until and isinstance(row.get("use"), (int, float))
        if not own or (row["attempt"], row["node"], row["gpu"]) in own
    ]
    return statistics.fmean(uses) if uses else None


def _number(row: Row, name: str) -> float:
    value = row.get(name)
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if good and value is not None else 0.0


# -- any other script


def _by_metric(run: Run, pattern: re.Pattern[str], weak: bool, ranks: int) -> Measure:
    lines = read_logs(run, ranks=[0]) if _has_logs(run) else read_logs(run)
    found = [match[1] for line in lines if (match := pattern.search(line.text))]
    values = [value for text in found if (value := _value(text)) is not None]
    if not values:
        seen = f"'{found[0]}' is no number above 0" if found else "no line of rank 0 matches it"
        raise AllranksError(f"--metric '{pattern.pattern}': {seen}. Look: allranks logs {run.id}")
    kept = settled(values)
    mean = statistics.fmean(kept)
    if SECONDS not in pattern.groupindex:
        unit = next(iter(pattern.groupindex), "units")
        return Measure(mean, unit.replace("_", " "), METRIC, windows=len(kept))
    # In a weak study every rank brings its own work, so the work of a step grows with them.
    rate = (ranks if weak else 1) / mean
    return Measure(rate, "steps", METRIC, step_seconds=mean, windows=len(kept))


def _has_logs(run: Run) -> bool:
    return any(attempt.log_files() for attempt in run.attempts)


def _value(text: str | None) -> float | None:
    try:
        value = float((text or "").replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None


def _by_wall_time(run: Run, weak: bool) -> Measure:
    if weak:
        raise AllranksError(
            "it has no metrics.jsonl, and its wall time alone says nothing about weak scaling. "
            r"Give --metric 'samples/s: ([\d.]+)', with what the script prints."
        )
    seconds = _wall_seconds(run.last_attempt)
    if seconds is None:
        raise AllranksError("it has no metrics.jsonl, and its run folder tells no times.")
    return Measure(1 / seconds, "runs", WALL_TIME, windows=1)


def _wall_seconds(attempt: Attempt | None) -> float | None:
    """From the start of the first rank to the end of the attempt."""
    if attempt is None or attempt.end is None:
        return None
    starts = [start for rank in attempt.ranks() if (start := parse_stamp(rank.start))]
    start = min(starts, default=attempt.start)
    seconds = (attempt.end - start).total_seconds() if start else 0.0
    return seconds if seconds > 0 else None
