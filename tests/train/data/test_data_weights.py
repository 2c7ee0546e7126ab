"""Each sample once per epoch over all ranks, in the same global batches for every number of ranks."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from data_rig import Plain, counted, distributed_loaders, steps  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from allranks.errors import UsageError  # noqa: E402
from allranks.train.data.audit import compare  # noqa: E402
from allranks.train.data.batch_schedule import part  # noqa: E402

sizes = st.integers(1, 9)


@settings(max_examples=120, deadline=None)
@given(st.integers(1, 60), sizes, sizes, st.booleans(), st.booleans(), st.integers(0, 3))
def test_exactly_once(
    n: int, batch: int, size: int, shuffle: bool, tensors: bool, epoch: int
) -> None:
    dataset = TensorDataset(torch.arange(float(n))) if tensors else Plain(n)
    made = distributed_loaders(DataLoader(dataset, batch_size=batch, shuffle=shuffle), size)
    run = steps(made, epoch)
    assert sorted(v for step in run for v in counted(step)) == list(range(n))
    assert len(run) == made[0].batches == -(-n // (batch * size))
    assert made[0].samples == n
    assert [made[0].total_of(i) for i in range(len(run))] == [len(counted(step)) for step in run]
    report = compare([distributed.rank_report() for distributed in made])
    assert report.ok, report.message


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 60), st.integers(1, 20), sizes, st.booleans())
def test_weights(n: int, batch: int, size: int, divide: bool) -> None:
    """The mean over ranks of weighted means is the mean over the samples of the global batch."""
    loader = DataLoader(TensorDataset(torch.arange(float(n))), batch_size=batch, shuffle=True)
    if divide and batch < size:
        with pytest.raises(UsageError, match="at least"):
            distributed_loaders(loader, size, batch_size_is="global")
        return
    made = distributed_loaders(loader, size, batch_size_is="global" if divide else "per_rank")
    for step in steps(made):
        values = counted(step)
        mean = sum((1 if s is None else s.factor) * sum(v) / len(v) for v, s in step) / size
        assert mean == pytest.approx(sum(values) / len(values))
        for own, weight in step:
            if weight is None:
                assert len(own) * size == made[0].global_batch
            else:
                assert weight.total == len(values)
                assert weight.count in (0, len(own))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 80), st.sampled_from([(12, 1), (6, 2), (4, 3), (3, 4), (2, 6)]), st.booleans()
)
def test_global_batches_do_not_depend_on_the_ranks(
    n: int, cut: tuple[int, int], drop: bool
) -> None:
    def run(batch: int, size: int) -> list[list[float]]:
        loader = DataLoader(
            TensorDataset(torch.arange(float(n))), batch_size=batch, shuffle=True, drop_last=drop
        )
        return [counted(step) for step in steps(distributed_loaders(loader, size, seed=5), 2)]

    if drop and n < 12:
        return
    assert run(*cut) == run(12, 1)


def test_uneven_division() -> None:
    assert [stop - start for start, stop in (part(10, 4, rank) for rank in range(4))] == [
        3,
        3,
        2,
        2,
    ]
    made = distributed_loaders(DataLoader(Plain(20), batch_size=10), 4, batch_size_is="global")
    assert [distributed.batch_size for distributed in made] == [3, 3, 2, 2]
    for step in steps(made):
        assert [weight.factor for _, weight in step] == pytest.approx([1.2, 1.2, 0.8, 0.8])


def test_drop_last_drops_the_short_global_batch() -> None:
    loader = DataLoader(Plain(22), batch_size=3, drop_last=True)
    run = steps(distributed_loaders(loader, 2))
    assert sorted(v for step in run for v in counted(step)) == list(range(18))
    assert all(weight is None for step in run for _, weight in step)
    kept = distributed_loaders(loader, 2, training=False)
    assert sorted(v for step in steps(kept) for v in counted(step)) == list(range(22))
    assert any("drop_last" in note for note in kept[0].notes)
    with pytest.raises(UsageError, match="leaves no batch"):
        distributed_loaders(DataLoader(Plain(5), batch_size=3, drop_last=True), 2)


def test_a_rank_without_samples_repeats_one_with_weight_0() -> None:
    run = steps(distributed_loaders(DataLoader(Plain(9), batch_size=2), 4))
    assert [(v, s.count, s.factor, s.total) for v, s in run[-1]] == [
        ([8.0], 1, 4.0, 1),
        ([8.0], 0, 0.0, 1),
        ([8.0], 0, 0.0, 1),
        ([8.0], 0, 0.0, 1),
    ]


def test_the_order_changes_with_epoch_and_seed_only() -> None:
    loader = DataLoader(Plain(50), batch_size=5, shuffle=True)
    one, again, other = (
        distributed_loaders(loader, 1)[0],
        distributed_loaders(loader, 1)[0],
        distributed_loaders(loader, 1, seed=1)[0],
    )
    torch.manual_seed(3)
    first = steps([one], 0)
    torch.manual_seed(4)
    assert steps([again], 0) == first
    assert steps([one], 1) != first
    assert steps([other], 0) != first


def test_the_feed_leaves_the_users_random_numbers_alone() -> None:
    distributed = distributed_loaders(DataLoader(Plain(10), batch_size=5, shuffle=True), 2)[0]
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    list(distributed.epoch(0))
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("tensors", [True, False])
@pytest.mark.parametrize("skip", [0, 1, 3, 4, 9])
def test_resuming_skips_by_index(tensors: bool, skip: int) -> None:
    read = []

    class Watched(Plain):
        def __getitem__(self, index: int) -> Any:
            read.append(index)
            return super().__getitem__(index)

    dataset = TensorDataset(torch.arange(23.0)) if tensors else Watched(23)
    loader = DataLoader(dataset, batch_size=3, shuffle=True)
    whole = steps(distributed_loaders(loader, 2))
    read.clear()
    rest = steps(distributed_loaders(loader, 2), skip=skip)
    assert rest == whole[skip:]
    if not tensors:
        assert len(read) == sum(len(values) for step in rest for values, _ in step)
