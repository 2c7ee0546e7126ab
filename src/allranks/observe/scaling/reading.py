"""What a run achieved, read from its folder: by its metrics, by what it prints, or by its wall time."""

from __future__ import annotations

import math
import re
import statistics
from datetime import datetime

from allranks.errors import AllranksError, UsageError
from allranks.observe.scaling.achieved import METRIC, WALL_TIME, Achieved, settled, standard_error
from allranks.observe.scaling.windows import by_windows
from allranks.runs.atomic_files import parse_stamp
from allranks.runs.attempt import Attempt
from allranks.runs.log_lines import read_logs
from allranks.runs.run import Run

SECONDS = "seconds"
"""The name of a metric's group that is the time of a step, not a speed."""


def check_metric(pattern: str | None) -> None:
    """Refuse an expression that cannot be used, before hours are spent."""
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


def read_achieved(run: Run, *, metric: str | None, weak: bool, ranks: int) -> Achieved:
    """By the metric, by the run's metrics, else by its wall time; AllranksError when nothing tells."""
    if metric:
        return _by_metric(run, re.compile(metric), weak, ranks)
    return by_windows(run) or _by_wall_time(run, weak)


def _by_metric(run: Run, pattern: re.Pattern[str], weak: bool, ranks: int) -> Achieved:
    lines = read_logs(run, ranks=[0]) if _has_logs(run) else read_logs(run)
    found = [match[1] for line in lines if (match := pattern.search(line.text))]
    values = [value for text in found if (value := _value(text)) is not None]
    if not values:
        seen = f"'{found[0]}' is no number above 0" if found else "no line of rank 0 matches it"
        raise AllranksError(f"--metric '{pattern.pattern}': {seen}. Look: allranks logs {run.id}")
    kept = settled(values)
    mean = statistics.fmean(kept)
    if SECONDS not in pattern.groupindex:
        rate, unit = mean, next(iter(pattern.groupindex), "units").replace("_", " ")
    else:  # in a weak study every rank brings its own work, so the work of a step grows with them
        rate, unit = (ranks if weak else 1) / mean, "steps"
    return Achieved(
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


def _by_wall_time(run: Run, weak: bool) -> Achieved:
    if weak:
        raise AllranksError(
            "it has no metrics.jsonl, and its wall time alone says nothing about weak scaling. "
            r"Give --metric 'samples/s: ([\d.]+)', with what the script prints."
        )
    last = run.last_attempt
    start, end = (_began(last), last.end) if last else (None, None)
    if start is None or end is None or end <= start:
        raise AllranksError("it has no metrics.jsonl, and its run folder tells no times.")
    seconds = (end - start).total_seconds()
    # A stamp without a fraction was written by a clock of whole seconds.
    error = 0.0 if end.microsecond else 1 / seconds
    return Achieved(1 / seconds, "runs", WALL_TIME, seconds=seconds, uncertainty=error)


def _began(attempt: Attempt) -> datetime | None:
    """When its first rank did; its own start where none tells."""
    starts = [start for rank in attempt.ranks() if (start := parse_stamp(rank.start))]
    return min(starts, default=attempt.start)
