"""Batches of any shape; the short way for tensors; streams and dicts on one rank."""

from __future__ import annotations

from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, IterableDataset, TensorDataset  # noqa: E402

from allranks.errors import UsageError, WorldError  # noqa: E402
from allranks.train.data import (  # noqa: E402
    DictLoader,
    InfiniteTensorDataset,
    LoaderOptions,
    distribute_loader,
    to_dataloader,
    to_device,
)
from allranks.train.data.batch_transfer import count_samples, leaves  # noqa: E402
from allranks.train.data.map_style import MapStyleLoader  # noqa: E402
from allranks.train.data.tensor_loader import TensorLoader  # noqa: E402

Pair = namedtuple("Pair", "x y")


@dataclass(frozen=True)
class Record:
    x: Any
    label: Any
    name: str = "r"


class Movable:
    """An object of a user with its own ``to``."""

    def __init__(self, x: Any) -> None:
        self.x = x
        self.device: Any = None

    def to(self, device: Any) -> Movable:
        made = Movable(self.x)
        made.device = device
        return made


class Encoding(UserDict):
    def to(self, device: Any, non_blocking: bool = False) -> Encoding:
        return Encoding({key: value.to(device) for key, value in self.items()})


def alone(loader: Any, **options: Any) -> Any:
    return distribute_loader(loader, rank=0, size=1, device="cpu", options=LoaderOptions(**options))


def test_dtype_changes_floats_only() -> None:
    x, i = torch.ones(2, 3), torch.ones(2, dtype=torch.int64)
    batch = {
        "list": [x, i], "pair": Pair(x, i), "record": Record(x, i), "text": "a", "none": None,
        "ordered": OrderedDict(x=x), "encoding": Encoding(x=x, i=i), "tuple": (x, 3),
    }  # fmt: skip
    moved = to_device(batch, "cpu", torch.float64)
    assert moved["list"][0].dtype == moved["pair"].x.dtype == torch.float64
    assert moved["record"].x.dtype == moved["ordered"]["x"].dtype == torch.float64
    assert moved["encoding"]["x"].dtype == moved["tuple"][0].dtype == torch.float64
    assert moved["list"][1].dtype == moved["pair"].y.dtype == torch.int64
    assert moved["record"].label.dtype == moved["encoding"]["i"].dtype == torch.int64
    assert (moved["text"], moved["none"], moved["tuple"][1]) == ("a", None, 3)
    kinds = [Pair, Record, OrderedDict, Encoding]
    assert [type(moved[k]) for k in ("pair", "record", "ordered", "encoding")] == kinds
    assert batch["record"].x.dtype == torch.float32  # the batch itself is not touched


def test_objects_move_themselves() -> None:
    moved = to_device(Movable(torch.ones(3)), "meta")
    assert moved.device == "meta"
    assert to_device([torch.ones(1)], "meta")[0].device.type == "meta"


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (torch.ones(3, 2), 3),
        ([torch.ones(4), torch.ones(2)], 4),
        ({"text": ["a", "b"], "x": torch.ones(2, 5)}, 2),
        (Pair(torch.ones(6), None), 6),
        (Record(torch.tensor(1.0), torch.ones(7)), 7),
        (Movable(torch.ones(5)), 5),
        (["a", "b", "c"], 3),
        ("text", 1),
    ],
)
def test_samples_of_a_batch(batch: Any, samples: int) -> None:
    assert count_samples(batch) == samples


def test_leaves_are_found_in_order() -> None:
    batch = {"a": [torch.zeros(1), {"b": torch.ones(1)}], "c": Record(torch.full((1,), 2.0), None)}
    assert [leaf.item() for leaf in leaves(batch)] == [0, 1, 2]


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("dtype", [None, torch.float64])
@pytest.mark.parametrize("size", [1, 3])
def test_the_short_way_equals_the_long_one(shuffle: bool, dtype: Any, size: int) -> None:
    tensors = torch.rand(25, 2, 3), torch.randint(9, (25,)), torch.rand(25, 1) > 0.5
    dataset = TensorDataset(*tensors)

    class Same(TensorDataset):
        """Not exactly a TensorDataset, so no short way."""

    options = LoaderOptions(dtype=dtype)
    for rank in range(size):
        short, long = (
            distribute_loader(
                DataLoader(data, batch_size=4, shuffle=shuffle), rank=rank, size=size,
                device="cpu", options=options,
            )
            for data in (dataset, Same(*tensors))
        )  # fmt: skip
        assert (type(short), type(long)) == (TensorLoader, MapStyleLoader)
        pairs = list(zip(short.epoch(1), long.epoch(1), strict=True))
        assert len(pairs) == short.batches
        for (one, weight), (other, other_share) in pairs:
            assert weight == other_share
            assert type(one) is type(other) is list
            assert all(torch.equal(a, b) and a.dtype == b.dtype
                       for a, b in zip(one, other, strict=True))  # fmt: skip


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_batch_changed_in_place_leaves_the_dataset_alone(shuffle: bool) -> None:
    data = torch.arange(6.0)
    for batch, _ in alone(DataLoader(TensorDataset(data), batch_size=2, shuffle=shuffle)).epoch(0):
        batch[0].zero_()
    assert data.tolist() == [0, 1, 2, 3, 4, 5]


def test_a_collate_function_takes_the_long_way() -> None:
    loader = DataLoader(
        TensorDataset(torch.arange(4.0)), batch_size=2, collate_fn=lambda items: len(items)
    )
    assert [batch for batch, _ in alone(loader).epoch(0)] == [2, 2]


class Numbers(IterableDataset):
    def __iter__(self) -> Any:
        return iter(torch.arange(7.0))


def test_a_stream_alone() -> None:
    distributed = alone(DataLoader(Numbers(), batch_size=3), dtype=torch.float64)
    found = [(batch.tolist(), weight and (weight.count, weight.factor, weight.total))
             for batch, weight in distributed.epoch(0)]  # fmt: skip
    assert found == [([0, 1, 2], None), ([3, 4, 5], None), ([6], (1, 1.0, 1))]
    assert [batch.tolist() for batch, _ in distributed.epoch(0, skip=2)] == [[6]]
    assert (distributed.batch_size, distributed.batches, distributed.check()) == (3, None, None)


def test_plain_batches_alone() -> None:
    distributed = alone([torch.ones(2), torch.ones(5), torch.ones(2)])
    for _ in range(2):  # the first batch says what a full one is
        assert [weight and weight.total for _, weight in distributed.epoch(0)] == [None, 5, None]
    assert distributed.batches == 3


def test_a_generator_is_read_once() -> None:
    distributed = alone(torch.ones(1) for _ in range(3))
    assert len(list(distributed.epoch(0))) == 3
    with pytest.raises(UsageError, match="can be read only once"):
        list(distributed.epoch(1))


@pytest.mark.parametrize("wrong", [3, None, "text", torch.ones(3)])
def test_what_is_no_loader_is_refused(wrong: Any) -> None:
    with pytest.raises(UsageError, match="is not a loader"):
        alone(wrong)


def test_a_stream_of_many_ranks_needs_a_group() -> None:
    with pytest.raises(WorldError, match="not initialized"):
        distribute_loader([torch.ones(1)], rank=0, size=2, device="cpu")


def test_ready_batches_cannot_be_divided() -> None:
    options = LoaderOptions(batch_size_is="global")
    with pytest.raises(UsageError, match="per_rank"):
        distribute_loader([torch.ones(4)], rank=0, size=2, device="cpu", options=options)


def test_options_are_checked() -> None:
    with pytest.raises(UsageError, match="batch_size_is"):
        LoaderOptions(batch_size_is="all")
    with pytest.raises(UsageError, match="shard_iterable"):
        LoaderOptions(shard_iterable="yes")


def test_to_dataloader() -> None:
    x, y = torch.arange(5.0), torch.arange(5)
    assert [a.tolist() for a, _ in to_dataloader(x, y, batch_size=2)] == [[0, 1], [2, 3], [4]]
    batches = iter(to_dataloader(x, y, batch_size=5, infinite=True))
    for _ in range(3):
        a, b = next(batches)
        assert sorted(a.tolist()) == [0, 1, 2, 3, 4]
        assert torch.equal(a.long(), b)
    with pytest.raises(UsageError, match="equal length"):
        InfiniteTensorDataset(x, torch.ones(4))


def test_infinite_tensors_give_the_same_global_batches_for_all_sizes() -> None:
    def batches(size: int) -> list[list[float]]:
        loader = to_dataloader(torch.arange(9.0), batch_size=6 // size, infinite=True)
        runs = [
            distribute_loader(loader, rank=r, size=size, device="cpu").epoch(2) for r in range(size)
        ]
        return [[v for run in runs for v in next(run)[0][0].tolist()] for _ in range(5)]

    assert batches(1) == batches(2) == batches(3)


def loaders() -> dict[str, Any]:
    return {
        "long": DataLoader(TensorDataset(torch.arange(10.0)), batch_size=2),
        "short": DataLoader(TensorDataset(torch.arange(4.0)), batch_size=2, shuffle=True),
        "endless": to_dataloader(torch.arange(3.0), batch_size=1, infinite=True),
    }


def test_the_longest_loader_defines_the_epoch() -> None:
    distributed = alone(DictLoader(loaders()))
    steps = [batch for batch, _ in distributed.epoch(0)]
    assert len(steps) == distributed.batches == 5
    assert [v for step in steps for v in step["long"][0].tolist()] == list(range(10))
    short = [v for step in steps for v in step["short"][0].tolist()]
    assert sorted(short[:4]) == sorted(short[4:8]) == [0, 1, 2, 3]
    assert distributed.check().ok
    plain = DictLoader({name: loaders()[name] for name in ("long", "short")})
    assert len(list(plain)) == len(plain) == 5


@pytest.mark.parametrize("skip", [0, 1, 2, 3, 5])
def test_a_dict_resumes(skip: int) -> None:
    whole = [batch for batch, _ in alone(loaders()).epoch(1)]
    rest = [batch for batch, _ in alone(loaders()).epoch(1, skip=skip)]
    assert str(rest) == str(whole[skip:])
