"""Going on in the middle of an epoch with another number of ranks and another batch: each sample once."""

from __future__ import annotations

import random
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from data_rig import Plain, counted, distributed_loaders, steps  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as some  # noqa: E402
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset  # noqa: E402

from allranks.errors import UsageError  # noqa: E402
from allranks.train.data import InfiniteTensorDataset, to_dataloader  # noqa: E402

pytestmark = pytest.mark.torch
lives = some.lists(
    some.tuples(some.integers(1, 4), some.integers(1, 7), some.integers(0, 5)),
    min_size=1,
    max_size=4,
)
"""(ranks, batch size, batches until the end of this life)."""


def loaded(kind: str, samples: int, batch: int) -> Any:
    if kind == "tensors":
        return DataLoader(TensorDataset(torch.arange(float(samples))), batch, shuffle=True)
    if kind == "batch sampler":
        sampler = BatchSampler(RandomSampler(range(samples)), 3, drop_last=False)
        return DataLoader(Plain(samples), batch_sampler=sampler)
    return DataLoader(Plain(samples), batch, shuffle=True)


def lived(make: Any, lives: Any, epoch: int = 2) -> list[float]:
    """What is seen in an epoch that is broken off and gone on with; the last life ends it."""
    seen: list[float] = []
    position = None
    for number, (ranks, batch, most) in enumerate(lives):
        made = distributed_loaders(make(batch), ranks, audit=False)
        for distributed in made if position is not None else ():
            distributed.resume(epoch, position)
        done = position["batches"] if position else 0
        last = number == len(lives) - 1
        for step in steps(made, epoch, skip=done)[: None if last else most]:
            seen += counted(step)
            done += 1
        position = made[0].position(epoch, done)
        assert position["batches"] == done
        if last and made[0].batches is not None:
            assert done == made[0].batches_of(epoch) == made[0].batches
    return seen


@pytest.mark.parametrize("kind", ["plain", "tensors", "batch sampler"])
@settings(max_examples=40, deadline=None)
@given(samples=some.integers(1, 40), lives=lives)
def test_every_sample_is_seen_once_whatever_the_ranks(
    kind: str, samples: int, lives: list[tuple[int, int, int]]
) -> None:
    seen = lived(lambda batch: loaded(kind, samples, batch), lives)
    assert sorted(seen) == [float(index) for index in range(samples)]


@settings(max_examples=30, deadline=None)
@given(lives=lives)
def test_a_stream_without_end_goes_on_at_the_same_sample(
    lives: list[tuple[int, int, int]],
) -> None:
    def seen(parts: list[tuple[int, int, int]]) -> list[float]:
        found: list[float] = []
        position = None
        for ranks, batch, most in parts:
            loader = to_dataloader(torch.arange(9.0), batch_size=batch, infinite=True)
            made = distributed_loaders(loader, ranks, audit=False)
            for distributed in made if position else ():
                distributed.resume(1, position)
            done = position["batches"] if position else 0
            runs = [distributed.epoch(1, skip=done) for distributed in made]
            for _ in range(most):
                found += [value for run in runs for value in next(run)[0][0].tolist()]
            position = made[0].position(1, done + most)
        return found

    parts = seen(lives)
    assert parts == seen([(1, 1, len(parts))])


@settings(max_examples=30, deadline=None)
@given(lives=lives, sizes=some.tuples(some.integers(1, 30), some.integers(1, 12)))
def test_each_of_several_loaders_goes_on_at_its_own_sample(
    lives: list[tuple[int, int, int]], sizes: tuple[int, int]
) -> None:
    seen: dict[str, list[float]] = {"long": [], "short": []}
    position = None
    for number, (ranks, batch, most) in enumerate(lives):
        loaders = {
            name: DataLoader(Plain(samples), batch, shuffle=True)
            for name, samples in zip(seen, sizes, strict=True)
        }
        made = distributed_loaders(loaders, ranks, audit=False)
        for distributed in made if position else ():
            distributed.resume(1, position)
        done = position["batches"] if position else 0
        runs = [list(distributed.epoch(1, skip=done)) for distributed in made]
        last = number == len(lives) - 1
        here = list(zip(*runs, strict=True))[: None if last else most]
        for step in here:
            for name in seen:
                seen[name] += [v for batch, _ in step for v in batch[name].flatten().tolist()]
        position = made[0].position(1, done + len(here))
    # Ranks without samples repeat some, so that each is seen at least once.
    for name, samples in zip(seen, sizes, strict=True):
        assert {*seen[name]} == {float(index) for index in range(samples)}


def test_the_audit_counts_what_was_seen_before() -> None:
    before = distributed_loaders(DataLoader(Plain(23), 4, shuffle=True), 1)[0]
    again = distributed_loaders(DataLoader(Plain(23), 5, shuffle=True), 1)[0]
    again.resume(0, before.position(0, 2))
    assert len(list(again.epoch(0, skip=2))) == 3
    report = again.check()
    assert report.ok
    assert report.message == "23 samples over 1 rank: each was seen exactly once."


def test_a_part_that_was_skipped_is_found_by_the_audit() -> None:
    distributed = distributed_loaders(DataLoader(Plain(23), 4, shuffle=True), 1)[0]
    distributed.resume(0, {**distributed.position(0, 2), "done": 8})
    distributed.schedule.order.indices = _other_from(distributed.schedule.order.indices, 1)
    list(distributed.epoch(0, skip=2))
    assert not distributed.check().ok


def _other_from(indices: Any, call: int) -> Any:
    """An order that is another one the second time it is asked for."""
    calls: list[int] = []

    def asked(epoch: int) -> Any:
        calls.append(epoch)
        return indices(epoch + (len(calls) > call))

    return asked


@pytest.mark.parametrize("workers", [0, 2])
def test_random_numbers_of_a_batch_do_not_depend_on_those_before(workers: int) -> None:
    class Drawing(Plain):
        def __getitem__(self, index: int) -> Any:
            return torch.tensor([torch.rand(()).item(), random.random()])

    def loader(count: int = workers) -> Any:
        return DataLoader(Drawing(12), 3, num_workers=count)

    whole = steps(distributed_loaders(loader(), 1))
    assert steps(distributed_loaders(loader(), 1), skip=2) == whole[2:]
    assert steps(distributed_loaders(loader(0), 1)) == whole
    assert len({step[0][0][0] for step in whole}) == len(whole)


def test_positions_of_another_kind_are_refused_in_words() -> None:
    plain = distributed_loaders(DataLoader(Plain(9), 3), 1)[0]
    stream = distributed_loaders([torch.zeros(3, 1)] * 3, 1)[0]
    with pytest.raises(UsageError, match="counted in samples, but this data is counted in batches"):
        stream.resume(1, plain.position(1, 1))
    data = InfiniteTensorDataset(torch.zeros(4))
    two, three = (
        distributed_loaders(DataLoader(data, batch, num_workers=1), 1)[0] for batch in (2, 3)
    )
    with pytest.raises(UsageError, match="with batch_size 2 per rank, but now it is 3"):
        three.resume(1, two.position(1, 1))


def test_one_process_goes_on_with_a_stream_that_two_ranks_shared() -> None:
    stream = distributed_loaders([torch.tensor([float(number)]) for number in range(7)], 1)[0]
    at = {"unit": "batches of the stream", "batches": 2, "done": 4, "size": 2, "batch_size": None}
    stream.resume(1, at)
    assert [batch.item() for batch, _ in stream.epoch(1, skip=2)] == [4.0, 5.0, 6.0]
    assert stream.position(1, 3)["done"] == 5
    own = {**at, "unit": "batches of each rank's own stream"}
    with pytest.raises(
        UsageError, match="2 streams, one for each rank, but the number of ranks is now 1"
    ):
        stream.resume(1, own)
