"""Ranks that the others waited for over a whole attempt, not only at its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from allranks.observe.report.model import SlowRank
from allranks.observe.view.run_source import AttemptSource, RunSource
from allranks.observe.view.stragglers import behind, late, own_work

MOST = 150
"""Windows looked at in each attempt, evenly spaced."""
LEAST = 3
"""Windows below which an attempt is not judged."""
OFTEN = 0.5
"""The share of the windows in which a rank has to be late."""


@dataclass(frozen=True)
class _Judged:
    """One attempt: where its ranks were, and which of them were slow."""

    hosts: dict[int, str]
    slow: Sequence[SlowRank]

    def ranks_on(self, host: str) -> set[int]:
        """Those that were slow there."""
        return {each.rank for each in self.slow if each.host == host}


def slow_ranks(source: RunSource) -> list[SlowRank]:
    """The slow ranks of the last attempt that can be judged, the slowest first."""
    judged = [found for each in source.attempts.values() if (found := _judge(each)) is not None]
    if not judged:
        return []
    last = sorted(judged[-1].slow, key=lambda each: -each.behind)
    return [replace(each, node_is_slow=_is_the_node(each, judged)) for each in last]


def _is_the_node(slow: SlowRank, judged: Sequence[_Judged]) -> bool:
    """Whether another attempt tells the node from the rank's share of the work.

    The same rank on the same node again tells nothing: its data may be the longest each time.
    """
    *before, last = judged
    if not slow.host or len(set(last.hosts.values())) < 2:
        return False
    other_ranks = any(life.ranks_on(slow.host) - last.ranks_on(slow.host) for life in before)
    fine_elsewhere = any(
        life.hosts.get(slow.rank, slow.host) != slow.host
        and slow.rank not in {each.rank for each in life.slow}
        for life in before
    )
    return other_ranks or fine_elsewhere


def _judge(attempt: AttemptSource) -> _Judged | None:
    size = len(attempt.steps)
    if size < LEAST:
        return None
    # The first window of an attempt is its start: caches are cold and kernels are compiled.
    places = range(1 if size > LEAST else 0, size, -(-size // MOST))
    shares: dict[int, list[float]] = {}
    often: dict[int, int] = {}
    for window in attempt.steps.at(places):
        for rank in late(own_work(window)):
            often[rank] = often.get(rank, 0) + 1
        for rank, share in enumerate(behind(window)):
            shares.setdefault(rank, []).extend([] if share is None else [share])
    hosts = {rank.rank: rank.host for rank in attempt.ranks}
    slow = [
        SlowRank(rank, hosts.get(rank, ""), median(shares[rank]))
        for rank, count in often.items()
        if count > OFTEN * len(places)
    ]
    # Where more than half of them are "slow", the work is uneven by design (stages of a pipeline).
    return _Judged(hosts, slow if len(slow) <= len(shares) // 2 else [])
