"""Ranks that the others waited for over a whole attempt, not only at its end."""

from __future__ import annotations

from statistics import median

from allranks.monitor.source import AttemptSource, Source
from allranks.monitor.stragglers import BEHIND, behind
from allranks.report.model import Slow

MOST = 150
"""Windows looked at in each attempt, evenly spaced."""
LEAST = 3
"""Windows below which an attempt is not judged."""
OFTEN = 0.5
"""The share of the windows in which a rank has to be behind."""


def slow_ranks(source: Source) -> list[Slow]:
    """The slow ranks of the last attempt that can be judged, the slowest first."""
    found = [slow for each in source.attempts.values() if (slow := _of(each)) is not None]
    if not found:
        return []
    hosts = [{each.host for each in life} for life in found]
    last = sorted(found[-1], key=lambda each: -each.behind)
    return [
        Slow(each.rank, each.host, each.behind, sum(each.host in names for names in hosts))
        for each in last
    ]


def _of(attempt: AttemptSource) -> list[Slow] | None:
    size = len(attempt.steps)
    if size < LEAST:
        return None
    stride = -(-size // MOST)
    # The first window of an attempt is its start: caches are cold and kernels are compiled.
    places = list(range(1 if size > LEAST else 0, size, stride))
    shares: dict[int, list[float]] = {}
    for window in attempt.steps.at(places):
        for rank, share in enumerate(behind(window)):
            if share is not None:
                shares.setdefault(rank, []).append(share)
    hosts = {rank.rank: rank.host for rank in attempt.ranks}
    slow = [
        Slow(rank, hosts.get(rank, ""), median(values))
        for rank, values in shares.items()
        if sum(value > BEHIND for value in values) > OFTEN * len(places)
    ]
    # Where half of them are "slow", the work is uneven by design (stages of a pipeline).
    return slow if len(slow) <= max(len(shares) // 2, 0) else []
