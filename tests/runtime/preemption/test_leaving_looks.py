"""All ranks look at the same steps, at a pace that rank 0 finds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest

from allranks.errors import UsageError
from allranks.runtime.preemption.communicator import Alone
from allranks.runtime.preemption.sync_points import Looks


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Together(Alone):
    """Ranks in one process: each look's numbers meet here and are read one look late, as on GPUs."""

    late = True

    def __init__(self, rank: int, met: list[list[Sequence[float]]], size: int) -> None:
        self.rank, self.size, self._met, self._count = rank, size, met, 0

    def start(self, numbers: Sequence[float]) -> Callable[[], list[float]]:
        at, self._count = self._count, self._count + 1
        if at == len(self._met):
            self._met.append([])
        self._met[at].append(numbers)
        return lambda: [sum(each) for each in zip(*self._met[at], strict=True)]


def ranks(size: int, clock: Clock) -> list[Looks]:
    met: list[list[Sequence[float]]] = []
    return [Looks(Together(rank, met, size), 0, clock) for rank in range(size)]


def steps(looks: list[Looks], clock: Clock, seconds: float, until: int, wish: int = 0) -> list[int]:
    """Run steps of so many seconds; rank 1 wishes from step ``wish`` on. Returns the steps of looks."""
    looked = []
    for step in range(1, until + 1):
        clock.now += seconds
        due = {step >= each.next for each in looks}
        assert len(due) == 1, "all ranks look, or none"
        if due == {True}:
            looked.append(step)
            wished = [
                float(bool(wish) and step >= wish and rank == 1) for rank in range(len(looks))
            ]
            found = [each.look(step, [wished[rank]])[0] for rank, each in enumerate(looks)]
            assert len(set(found)) == 1, "all ranks find the same"
            if found[0]:
                return [*looked, -step]
    return looked


def test_the_pace_is_found_in_a_few_looks() -> None:
    clock = Clock()
    looked = steps(ranks(3, clock), clock, 0.001, 20_000)
    assert len(looked) < 40
    assert 900 <= looked[-1] - looked[-2] <= 1100, "read late, looks are a second apart"


def test_a_wish_of_one_rank_is_found_by_all_at_one_step_soon() -> None:
    clock = Clock()
    looked = steps(ranks(4, clock), clock, 0.01, 5000, wish=3000)
    assert 3000 <= -looked[-1] <= 3000 + 2 * 110


def test_slow_steps_are_looked_at_one_by_one() -> None:
    clock = Clock()
    assert steps(ranks(2, clock), clock, 5.0, 6) == [1, 2, 3, 4, 5, 6]


def test_steps_that_become_slow_are_looked_at_more_often() -> None:
    clock = Clock()
    looks = ranks(2, clock)
    steps(looks, clock, 0.001, 8000)
    first = looks[0].next
    clock.now += 0.4 * (first - 8000)
    for each in looks:
        each.look(first, [0.0])
    after = looks[0].next
    for each in looks:
        each.look(after, [0.0])
    assert looks[0].next - after <= 50, "they were 1000 apart"


def test_ranks_at_different_steps_are_told_in_words() -> None:
    looks = ranks(2, Clock())
    for each, step in zip(looks, (1, 2), strict=True):
        each.look(step, [0.0])
    with pytest.raises(UsageError, match="Rank 0 is at step 1, other ranks are at another one"):
        looks[0].look(2, [0.0])


def test_one_process_looks_often_and_at_once() -> None:
    clock = Clock()
    looks = Looks(Alone(), 0, clock)
    looked = steps([looks], clock, 0.01, 400)
    assert max(b - a for a, b in pairwise(looked)) <= 20
    assert looks.look(400, [1.0, 0.0]) == [1.0, 0.0]


def test_the_longest_time_between_looks_is_kept_but_for_the_first_steps() -> None:
    clock = Clock()
    looks = Looks(Alone(), 0, clock)
    for seconds in (60.0, 1.0, 7.0, 1.0):  # compilation, a step, a validation, a step
        clock.now += seconds
        looks.look(looks.next, [0.0])
    assert looks.gap == 7.0
    clock.now += 50
    looks.restart(looks.next)  # a save is reckoned with by itself
    clock.now += 1
    looks.look(looks.next + 1, [0.0])
    assert looks.gap == 7.0
