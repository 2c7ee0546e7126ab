"""All ranks sync at the same steps, at an interval that rank 0 finds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest

from allranks.errors import UsageError
from allranks.runtime.preemption.flag_exchange import SyncPoints
from allranks.runtime.world.communicator import SingleProcess


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Together(SingleProcess):
    """Ranks in one process: each sync point's numbers meet here and are read one sync point late, as on GPUs."""

    is_deferred = True

    def __init__(self, rank: int, met: list[list[Sequence[float]]], size: int) -> None:
        self.rank, self.size, self._met, self._count = rank, size, met, 0

    def start_sum(self, numbers: Sequence[float]) -> Callable[[], list[float]]:
        at, self._count = self._count, self._count + 1
        if at == len(self._met):
            self._met.append([])
        self._met[at].append(numbers)
        return lambda: [sum(each) for each in zip(*self._met[at], strict=True)]


def ranks(size: int, clock: Clock) -> list[SyncPoints]:
    met: list[list[Sequence[float]]] = []
    return [SyncPoints(Together(rank, met, size), 0, clock) for rank in range(size)]


def steps(
    points: list[SyncPoints], clock: Clock, seconds: float, until: int, flagged: int = 0
) -> list[int]:
    """Run steps of so many seconds, rank 1 flagged from ``flagged`` on; return the steps that synced."""
    synced = []
    for step in range(1, until + 1):
        clock.now += seconds
        due = {step >= each.next_step for each in points}
        assert len(due) == 1, "all ranks sync, or none"
        if due == {True}:
            synced.append(step)
            flags = [
                float(bool(flagged) and step >= flagged and rank == 1)
                for rank in range(len(points))
            ]
            found = [each.sync(step, [flags[rank]])[0] for rank, each in enumerate(points)]
            assert len(set(found)) == 1, "all ranks find the same"
            if found[0]:
                return [*synced, -step]
    return synced


def test_the_interval_is_found_in_a_few_sync_points() -> None:
    clock = Clock()
    synced = steps(ranks(3, clock), clock, 0.001, 20_000)
    assert len(synced) < 40
    assert 900 <= synced[-1] - synced[-2] <= 1100, "read late, sync points are a second apart"


def test_a_flag_of_one_rank_is_found_by_all_at_one_step_soon() -> None:
    clock = Clock()
    synced = steps(ranks(4, clock), clock, 0.01, 5000, flagged=3000)
    assert 3000 <= -synced[-1] <= 3000 + 2 * 110


def test_slow_steps_sync_one_by_one() -> None:
    clock = Clock()
    assert steps(ranks(2, clock), clock, 5.0, 6) == [1, 2, 3, 4, 5, 6]


def test_steps_that_become_slow_sync_more_often() -> None:
    clock = Clock()
    points = ranks(2, clock)
    steps(points, clock, 0.001, 8000)
    first = points[0].next_step
    clock.now += 0.4 * (first - 8000)
    for each in points:
        each.sync(first, [0.0])
    after = points[0].next_step
    for each in points:
        each.sync(after, [0.0])
    assert points[0].next_step - after <= 50, "they were 1000 apart"


def test_ranks_at_different_steps_are_told_in_words() -> None:
    points = ranks(2, Clock())
    for each, step in zip(points, (1, 2), strict=True):
        each.sync(step, [0.0])
    with pytest.raises(UsageError, match="Rank 0 is at step 1, other ranks are at another one"):
        points[0].sync(2, [0.0])


def test_one_process_syncs_often_and_at_once() -> None:
    clock = Clock()
    points = SyncPoints(SingleProcess(), 0, clock)
    synced = steps([points], clock, 0.01, 400)
    assert max(b - a for a, b in pairwise(synced)) <= 20
    assert points.sync(400, [1.0, 0.0]) == [1.0, 0.0]


def test_the_longest_time_between_sync_points_is_kept_but_for_the_first_steps() -> None:
    clock = Clock()
    points = SyncPoints(SingleProcess(), 0, clock)
    for seconds in (60.0, 1.0, 7.0, 1.0):  # compilation, a step, a validation, a step
        clock.now += seconds
        points.sync(points.next_step, [0.0])
    assert points.longest_gap == 7.0
    clock.now += 50
    points.exclude_time(points.next_step)  # a save is reckoned with by itself
    clock.now += 1
    points.sync(points.next_step + 1, [0.0])
    assert points.longest_gap == 7.0
