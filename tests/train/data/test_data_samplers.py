"""Samplers, batch samplers and workers of a user, taken as they are."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402
from data_rig import Plain, counted, distributed_loaders, steps  # noqa: E402
from torch.utils.data import (  # noqa: E402
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from allranks.errors import UsageError  # noqa: E402
from allranks.train.data import random_state  # noqa: E402
from allranks.train.data.audit import compare  # noqa: E402


def all_samples(run: Any) -> list[float]:
    return [value for step in run for value in counted(step)]


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("drop", [True, False])
def test_a_distributed_sampler_loses_its_padding(shuffle: bool, drop: bool) -> None:
    sampler = DistributedSampler(
        range(11), num_replicas=2, rank=0, shuffle=shuffle, seed=7, drop_last=drop
    )
    made = distributed_loaders(DataLoader(Plain(11), batch_size=2, sampler=sampler), 2)
    order = [float(i) for i in range(11)]
    if shuffle:
        order = torch.randperm(11, generator=torch.Generator().manual_seed(7 + 3)).tolist()
    assert all_samples(steps(made, 3)) == order[: 10 if drop else 11]
    assert "DistributedSampler replaced" in made[0].notes[0]


def test_weighted_and_subset_samplers_draw_alike_on_all_ranks() -> None:
    weights = torch.arange(1.0, 31.0)
    for sampler, number in (
        (WeightedRandomSampler(weights, 40), 40),
        (RandomSampler(range(30), replacement=True, num_samples=25), 25),
        (SubsetRandomSampler([3, 5, 8, 13, 21]), 5),
    ):
        loader = DataLoader(Plain(30), batch_size=2, sampler=sampler)
        alone = all_samples(
            steps(distributed_loaders(DataLoader(Plain(30), batch_size=6, sampler=sampler), 1))
        )
        assert len(alone) == number
        torch.manual_seed(random.randrange(1000))  # the global state must not matter
        assert all_samples(steps(distributed_loaders(loader, 3))) == alone
        assert all_samples(steps(distributed_loaders(loader, 3), 1)) != alone


class ByRandomModules(Sampler):
    """Draws from three global generators and follows set_epoch."""

    epoch = -1

    def __init__(self) -> None:
        """Nothing to keep."""

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 12

    def __iter__(self) -> Iterator[int]:
        order = list(range(self.epoch, self.epoch + 12))
        random.shuffle(order)
        np.random.shuffle(order)
        return iter([order[i] for i in torch.randperm(12).tolist()])


def test_a_samplers_global_random_numbers_are_ours() -> None:
    made = distributed_loaders(DataLoader(Plain(20), batch_size=2, sampler=ByRandomModules()), 2)
    before = random.getstate(), torch.get_rng_state()
    run = all_samples(steps(made, 4))
    assert sorted(run) == [float(i) for i in range(4, 16)]
    assert run != sorted(run)
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])


@pytest.mark.parametrize("exchange", [True, False])
def test_own_random_numbers(exchange: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A random state continues inside and does not change the global one, also with an old numpy."""
    if not exchange:
        monkeypatch.delattr(np.random, "set_bit_generator", raising=False)

    def draw() -> tuple[float, ...]:
        return random.random(), float(np.random.rand()), torch.rand(()).item()

    one, other = random_state.OwnRandomState(5), random_state.OwnRandomState(5)
    with one:
        expected = [draw(), draw(), draw()]
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    outside = [draw(), draw()]
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    found, between = [], []
    for _ in range(2):
        with other:
            found.append(draw())
        between.append(draw())
    assert found == expected[:2]
    assert between == outside


class Endless(Sampler):
    """No length and no end; counts what was taken from it."""

    def __init__(self, stop: int | None = None) -> None:
        self.stop = stop
        self.taken = 0

    def __iter__(self) -> Iterator[int]:
        self.taken = 0
        for index in count() if self.stop is None else range(self.stop):
            self.taken += 1
            yield index % 50


def test_a_sampler_without_end_is_read_as_it_goes() -> None:
    sampler = Endless()
    distributed = distributed_loaders(DataLoader(Plain(50), batch_size=2, sampler=sampler), 3)[1]
    batches = distributed.epoch(0)
    assert [next(batches)[0].flatten().tolist() for _ in range(3)] == [[2, 3], [8, 9], [14, 15]]
    assert sampler.taken == 18
    assert distributed.batches is None
    assert distributed.total_of(0) is None


@pytest.mark.parametrize("drop", [True, False])
def test_a_sampler_without_length_ends(drop: bool) -> None:
    loader = DataLoader(Plain(50), batch_size=2, sampler=Endless(20), drop_last=drop)
    made = distributed_loaders(loader, 3)
    assert all_samples(steps(made)) == list(range(18 if drop else 20))
    assert compare([distributed.rank_report() for distributed in made]).ok
    assert (
        steps(distributed_loaders(loader, 3), skip=2) == steps(distributed_loaders(loader, 3))[2:]
    )


class Buckets(Sampler):
    """Batches of different sizes, in random order."""

    sizes = (3, 1, 4, 1, 5, 2, 6)

    def __init__(self) -> None:
        """Nothing to keep."""

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Iterator[list[int]]:
        start, batches = 0, []
        for size in self.sizes:
            batches.append(list(range(start, start + size)))
            start += size
        random.shuffle(batches)
        return iter(batches)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("how", ["per_rank", "global"])
def test_batch_samplers(size: int, how: str) -> None:
    loader = DataLoader(Plain(22), batch_sampler=Buckets())
    made = distributed_loaders(loader, size, batch_size_is=how)
    run = steps(made)
    assert sorted(all_samples(run)) == list(range(22))
    assert len(run) == made[0].batches == (7 if how == "global" else -(-7 // size))
    for index, step in enumerate(run):
        counts = [len(v) if s is None else s.count for v, s in step]
        assert sum(counts) == made[0].total_of(index)
        if step[0][1] is None:
            assert len(set(counts)) == 1
            continue
        assert {weight.total for _, weight in step} == {sum(counts)}
        assert sum(weight.factor for _, weight in step) == pytest.approx(size)
    assert compare([distributed.rank_report() for distributed in made]).ok
    assert steps(distributed_loaders(loader, size, batch_size_is=how), skip=1) == run[1:]


@pytest.mark.parametrize("how", ["per_rank", "global"])
def test_batches_of_one_size_are_full(how: str) -> None:
    batches = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15], [16, 17, 18]]
    run = steps(
        distributed_loaders(DataLoader(Plain(19), batch_sampler=batches), 2, batch_size_is=how)
    )
    assert sorted(all_samples(run)) == list(range(19))
    for step in run[:-1]:
        assert [weight for _, weight in step] == [None, None]
    last = [(weight.count, weight.total) for _, weight in run[-1]]
    assert last == ([(2, 3), (1, 3)] if how == "global" else [(3, 3), (0, 3)])


def test_a_plain_batch_sampler_is_taken_apart() -> None:
    batches = BatchSampler(RandomSampler(range(20)), 3, True)
    made = distributed_loaders(DataLoader(Plain(20), batch_sampler=batches), 2)
    run = steps(made)
    assert made[0].batch_size == 3
    assert len(set(all_samples(run))) == 18
    assert all(weight is None for step in run for _, weight in step)


class Workers(Dataset):
    """Tells the worker's random numbers beside the index."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return index, random.random(), float(np.random.rand()), torch.rand(()).item()


def greet(worker: int) -> None:
    torch.manual_seed(worker)  # the user's own choice comes last


def test_persistent_workers_get_a_new_order_in_each_epoch() -> None:
    loader = DataLoader(
        Workers(), batch_size=2, shuffle=True, num_workers=2, persistent_workers=True,
        worker_init_fn=greet,
    )  # fmt: skip
    made = distributed_loaders(loader, 2)
    orders, drawn = [], []
    for epoch in (0, 1):
        order: list[int] = []
        for distributed in made:
            for batch, _ in distributed.epoch(epoch):
                order += batch[0].tolist()
                drawn += batch[1].tolist() + batch[2].tolist()
        assert sorted(order) == list(range(12))
        orders.append(order)
    assert orders[0] != orders[1]
    assert len(set(drawn)) == len(drawn)  # no two workers of any rank draw the same
    pids = [worker.pid for worker in made[0]._loader._iterator._workers]
    assert len(pids) == 2
    for distributed in made:
        distributed.close()
    assert made[0]._loader._iterator is None


def test_workers_draw_the_same_in_the_same_epoch_again() -> None:
    loader = DataLoader(Workers(), batch_size=3, num_workers=1)
    distributed = distributed_loaders(loader, 1)[0]
    runs = [
        [torch.stack(batch[1:]) for batch, _ in distributed.epoch(epoch)] for epoch in (0, 0, 1)
    ]
    assert torch.equal(torch.stack(runs[0]), torch.stack(runs[1]))
    assert not torch.equal(torch.stack(runs[0]), torch.stack(runs[2]))


class Marked(DataLoader):
    """A subclass with its own constructor and its own way to iterate."""

    def __init__(self, dataset: Any, mark: str) -> None:
        super().__init__(dataset, batch_size=4, collate_fn=lambda items: torch.stack(items))
        self.mark = mark

    def __iter__(self) -> Any:
        for batch in super().__iter__():
            yield {"x": batch, "mark": self.mark}


def test_a_subclass_stays_itself() -> None:
    made = distributed_loaders(Marked(Plain(12), "m"), 2)
    run = [[batch for batch, _ in distributed.epoch(0)] for distributed in made]
    assert all(batch["mark"] == "m" for batches in run for batch in batches)
    values = [v for batches in run for batch in batches for v in batch["x"].flatten().tolist()]
    assert sorted(values) == list(range(12))


def test_a_loader_that_ignores_its_indices_is_refused() -> None:
    class Deaf(DataLoader):
        def __iter__(self) -> Any:
            return iter([torch.ones(2)])

    with pytest.raises(UsageError, match="does not take its indices"):
        list(distributed_loaders(Deaf(Plain(10), batch_size=2), 2)[0].epoch(0))


def test_the_users_loader_is_left_as_it_was() -> None:
    loader = DataLoader(Plain(6), batch_size=2)
    list(distributed_loaders(loader, 2)[1].epoch(0))
    assert [batch.flatten().tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5]]


def test_keys_that_are_no_integers() -> None:
    keys = ["a", "b", "c", "d", "e"]
    loader = DataLoader({k: torch.tensor(ord(k)) for k in keys}, batch_size=2, sampler=keys)
    made = distributed_loaders(loader, 2)
    assert all_samples(steps(made)) == [float(ord(k)) for k in keys]
    assert compare([distributed.rank_report() for distributed in made]).ok


def test_tensor_datasets_with_samplers_take_the_short_way() -> None:
    loader = DataLoader(TensorDataset(torch.arange(9.0)), batch_size=2, sampler=[8, 1, 4])
    assert all_samples(steps(distributed_loaders(loader, 2))) == [8, 1, 4]
