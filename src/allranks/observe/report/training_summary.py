"""Summarize the metrics of a run: latest, typical and best values, a diverged loss, slow ranks.

A script may train several times in one run, each from step 0 on: losses are those of the last training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from allranks.observe.report.model import SlowRank
from allranks.observe.view.metric_columns import MetricColumns, fit_start
from allranks.observe.view.model import PHASES, RunView
from allranks.observe.view.run_source import AttemptSource, RunSource
from allranks.observe.view.stragglers import behind_shares, late_ranks, own_work

_SHOWN = (
    "train_loss", "val_loss", "samples_per_second", "tokens_per_second", "mfu", "flops_per_second",
    "step_seconds", "lr", "grad_norm",
)  # fmt: skip
"""Metrics that come first; the others follow by name."""
_LOSSES = {"train_loss": "train", "val_loss": "val"}
"""By the table that has them."""


def latest_values(look: RunView) -> dict[str, float]:
    """Return the latest value of each metric, without the phases of a step."""
    first = [name for name in _SHOWN if name in look.values]
    rest = sorted(name for name in look.values if name not in _SHOWN)
    hidden = {f"{phase}_seconds" for phase in PHASES} | {"epoch_seconds"}
    return {name: look.values[name] for name in [*first, *rest] if name not in hidden}


def typical_values(source: RunSource) -> dict[str, float]:
    """Return medians of the speed over the run."""
    names = ("samples_per_second", "tokens_per_second", "mfu", "step_seconds")
    known = {name: _known(source.train[name]) for name in names}
    return {name: median(values) for name, values in known.items() if values}


def best_losses(source: RunSource) -> dict[str, float]:
    """Return the lowest value of each loss."""
    since = fit_start(source)
    known = {name: _known(_since(source, name, since)[1]) for name in _LOSSES}
    return {name: min(values) for name, values in known.items() if values}


def diverged_losses(source: RunSource) -> dict[str, int]:
    """Return the losses that are NaN or infinite to the end, each with its first such step."""
    since, found = fit_start(source), dict[str, int]()
    for name, kind in _LOSSES.items():
        if name in source.nonfinite.get(kind, ()):
            steps, values = _since(source, name, since)
            finite = max((at for at, value in enumerate(values) if value is not None), default=-1)
            lost = _known(steps[finite + 1 :])
            found |= {name: int(lost[0])} if lost else {}
    return found


def _since(source: RunSource, name: str, since: float) -> tuple[list[Any], list[Any]]:
    """Return the steps and the values of a loss."""
    columns: MetricColumns = getattr(source, _LOSSES[name])
    begin = columns.first_since(since)
    return columns.part("step", begin), columns.part(name, begin)


def _known(values: list[Any]) -> list[float]:
    return [value for value in values if value is not None]


MOST = 150
"""Windows looked at in each attempt, evenly spaced."""
LEAST = 3
"""Windows below which an attempt is not judged."""
OFTEN = 0.5
"""The share of the windows in which a rank has to be late."""


@dataclass(frozen=True)
class _AssessedAttempt:
    """One attempt: where its ranks were, and which of them were slow."""

    hosts: dict[int, str]
    slow: Sequence[SlowRank]

    def ranks_on(self, host: str) -> set[int]:
        """Return the slow ranks of a host."""
        return {each.rank for each in self.slow if each.host == host}


def slow_ranks(source: RunSource) -> list[SlowRank]:
    """Return the slow ranks of the last attempt that can be judged, the slowest first."""
    judged = [
        found for each in source.attempts.values() if (found := _assess_attempt(each)) is not None
    ]
    if not judged:
        return []
    last = sorted(judged[-1].slow, key=lambda each: -each.behind)
    return [replace(each, node_is_slow=_is_node_slow(each, judged)) for each in last]


def _is_node_slow(slow: SlowRank, judged: Sequence[_AssessedAttempt]) -> bool:
    """Return whether another attempt shows that the node is slow, not the rank's share of the work.

    The same rank on the same node again proves nothing: its data may be the longest each time.
    """
    *before, last = judged
    if not slow.host or len(set(last.hosts.values())) < 2:
        return False
    other_ranks = any(attempt.ranks_on(slow.host) - last.ranks_on(slow.host) for attempt in before)
    fine_elsewhere = any(
        attempt.hosts.get(slow.rank, slow.host) != slow.host
        and slow.rank not in {each.rank for each in attempt.slow}
        for attempt in before
    )
    return other_ranks or fine_elsewhere


def _assess_attempt(attempt: AttemptSource) -> _AssessedAttempt | None:
    size = len(attempt.steps)
    if size < LEAST:
        return None
    # The first window of an attempt is its start: caches are cold and kernels are compiled.
    places = range(1 if size > LEAST else 0, size, -(-size // MOST))
    shares: dict[int, list[float]] = {}
    often: dict[int, int] = {}
    for window in attempt.steps.at(places):
        for rank in late_ranks(own_work(window)):
            often[rank] = often.get(rank, 0) + 1
        for rank, share in enumerate(behind_shares(window)):
            shares.setdefault(rank, []).extend([] if share is None else [share])
    hosts = {rank.rank: rank.host for rank in attempt.ranks}
    slow = [
        SlowRank(rank, hosts.get(rank, ""), median(shares[rank]))
        for rank, count in often.items()
        if count > OFTEN * len(places)
    ]
    # Where more than half of them are "slow", the work is uneven by design (stages of a pipeline).
    return _AssessedAttempt(hosts, slow if len(slow) <= len(shares) // 2 else [])
