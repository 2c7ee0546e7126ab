"""Runs every scenario below on real gloo ranks, once per world size, and returns what each rank saw."""

from __future__ import annotations

import pickle
import random
import socket
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Sampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    random_split,
)

from allranks.errors import UsageError
from allranks.train.data import InfiniteTensorDataset, LoaderOptions, distribute_loader

SCENARIOS: list[Callable[[int, int], Any]] = []


def scenario(function: Callable[[int, int], Any]) -> Callable[[int, int], Any]:
    SCENARIOS.append(function)
    return function


def run(size: int, folder: Path) -> dict[str, list[Any]]:
    """``{scenario: [result of rank 0, result of rank 1, …]}``."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = mp.start_processes(
        _rank, (size, port, str(folder)), nprocs=size, join=False, start_method="spawn"
    )
    deadline = time.monotonic() + 90
    while not context.join(timeout=1):
        if time.monotonic() > deadline:
            for process in context.processes:
                process.kill()
            raise AssertionError("the ranks did not end in 90 s")
    found = [pickle.loads((folder / f"{rank}.pickle").read_bytes()) for rank in range(size)]
    return {one.__name__: [seen[one.__name__] for seen in found] for one in SCENARIOS}


def _rank(rank: int, size: int, port: int, folder: str) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size
    )
    seen = {}
    for one in SCENARIOS:
        torch.manual_seed(rank)  # ranks differ in what they draw outside of the loader
        random.seed(rank)
        seen[one.__name__] = _result(one, rank, size)
        dist.barrier()
    Path(folder, f"{rank}.pickle").write_bytes(pickle.dumps(seen))
    dist.destroy_process_group()


def _result(one: Callable[[int, int], Any], rank: int, size: int) -> Any:
    try:
        return one(rank, size)
    except UsageError as error:
        return f"UsageError: {error}"


def distribute(loader: Any, rank: int, size: int, **options: Any) -> Any:
    return distribute_loader(
        loader, rank=rank, size=size, device="cpu", options=LoaderOptions(**options)
    )


def seen_by(distributed: Any, epoch: int = 0, skip: int = 0) -> dict[str, Any]:
    """Samples that count, and (count, weight, total) of each step."""
    samples, weights = [], []
    for batch, weight in distributed.epoch(epoch, skip=skip):
        tensor = batch[0] if isinstance(batch, list) else batch
        torch.rand(distributed.layout.rank + 1)  # dropout that draws differently on each rank
        if weight is None or weight.count:
            samples += tensor.flatten().tolist()
        weights.append(None if weight is None else (weight.count, weight.factor, weight.total))
    report = distributed.check()
    return {"samples": samples, "weights": weights, "audit": report, "notes": distributed.notes}


class Numbers(IterableDataset):
    """0 … n-1, on every rank the same unless ``start`` and ``step`` say otherwise."""

    def __init__(self, stop: int, start: int = 0, step: int = 1, shuffle: bool = False) -> None:
        self.range = range(start, stop, step)
        self.shuffle = shuffle

    def __iter__(self) -> Iterator[torch.Tensor]:
        numbers = list(self.range)
        if self.shuffle:
            random.shuffle(numbers)
        return (torch.tensor(float(number)) for number in numbers)


@scenario
def unsharded_auto(rank: int, size: int) -> Any:
    return seen_by(distribute(DataLoader(Numbers(22), batch_size=3), rank, size))


@scenario
def shuffled_auto(rank: int, size: int) -> Any:
    distributed = distribute(DataLoader(Numbers(30, shuffle=True), batch_size=2), rank, size)
    return [seen_by(distributed, 0), seen_by(distributed, 1)]


@scenario
def unsharded_left(rank: int, size: int) -> Any:
    return seen_by(
        distribute(DataLoader(Numbers(12), batch_size=3), rank, size, shard_iterable=False)
    )


@scenario
def sharded_by_user(rank: int, size: int) -> Any:
    loader = DataLoader(Numbers(40, start=rank, step=size), batch_size=4)
    return seen_by(distribute(loader, rank, size))


@scenario
def uneven(rank: int, size: int) -> Any:
    """Rank r has 5 - 2r batches of 2, and one sample more on rank 0."""
    base = 100 * rank
    loader = DataLoader(Numbers(base + 2 * (5 - 2 * rank) + (rank == 0), start=base), batch_size=2)
    return seen_by(distribute(loader, rank, size))


@scenario
def one_rank_empty(rank: int, size: int) -> Any:
    return seen_by(distribute([] if rank == 1 else [torch.ones(2)], rank, size))


@scenario
def plain_list(rank: int, size: int) -> Any:
    batches = [torch.arange(3.0) + 3 * number for number in range(5)]
    return seen_by(distribute(batches, rank, size))


@scenario
def generator_twice(rank: int, size: int) -> Any:
    distributed = distribute((torch.ones(2) * number for number in range(6)), rank, size)
    seen_by(distributed)
    return seen_by(distributed, 1)


@scenario
def stream_skip(rank: int, size: int) -> Any:
    distributed = distribute(DataLoader(Numbers(24), batch_size=2), rank, size)
    return [seen_by(distributed, 0), seen_by(distributed, 0, skip=2)]


@scenario
def stream_resumed(rank: int, size: int) -> Any:
    """After three batches that three ranks had read, in turn."""
    distributed = distribute(DataLoader(Numbers(24), batch_size=2), rank, size)
    at = {"unit": "batches of the stream", "batches": 1, "done": 3, "size": 3, "batch_size": 2}
    distributed.resume(0, at)
    return [seen_by(distributed, 0, skip=1), distributed.position(0, 2)["done"]]


@scenario
def stream_workers(rank: int, size: int) -> Any:
    loader = DataLoader(Numbers(12), batch_size=2, num_workers=1, multiprocessing_context="fork")
    return seen_by(distribute(loader, rank, size))


@scenario
def unbatched(rank: int, size: int) -> Any:
    class Shards(Dataset):
        def __len__(self) -> int:
            return 5

        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.full((index + 1,), float(index))

    return seen_by(distribute(DataLoader(Shards(), batch_size=None, shuffle=True), rank, size))


@scenario
def global_stream(rank: int, size: int) -> Any:
    loader = DataLoader(Numbers(24), batch_size=6)
    return seen_by(distribute(loader, rank, size, batch_size_is="global"))


@scenario
def map_style(rank: int, size: int) -> Any:
    loader = DataLoader(TensorDataset(torch.arange(23.0)), batch_size=3, shuffle=True)
    return seen_by(distribute(loader, rank, size))


@scenario
def weighted(rank: int, size: int) -> Any:
    sampler = WeightedRandomSampler(torch.arange(1.0, 21.0), 20)
    loader = DataLoader(TensorDataset(torch.arange(20.0)), batch_size=3, sampler=sampler)
    return seen_by(distribute(loader, rank, size))


class ByRank(Sampler):
    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __len__(self) -> int:
        return 12

    def __iter__(self) -> Iterator[int]:
        return iter([(index + self.rank) % 12 for index in range(12)])


@scenario
def sampler_by_rank(rank: int, size: int) -> Any:
    loader = DataLoader(TensorDataset(torch.arange(12.0)), batch_size=2, sampler=ByRank(rank))
    return seen_by(distribute(loader, rank, size))


@scenario
def unseeded_split(rank: int, size: int) -> Any:
    part, _ = random_split(TensorDataset(torch.arange(20.0)), [10, 10])
    return seen_by(distribute(DataLoader(part, batch_size=2), rank, size))


@scenario
def other_length(rank: int, size: int) -> Any:
    part = Subset(TensorDataset(torch.arange(20.0)), range(10 + rank))
    return seen_by(distribute(DataLoader(part, batch_size=2), rank, size))


@scenario
def other_contents(rank: int, size: int) -> Any:
    loader = DataLoader(TensorDataset(torch.rand(12)), batch_size=2)
    return seen_by(distribute(loader, rank, size))


@scenario
def augmented(rank: int, size: int) -> Any:
    """Random numbers on top of the same data are no mistake."""

    class Noisy(Dataset):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.tensor([index + torch.rand(()).item() / 2])

    return seen_by(distribute(DataLoader(Noisy(), batch_size=2), rank, size))


@scenario
def infinite(rank: int, size: int) -> Any:
    loader = DataLoader(InfiniteTensorDataset(torch.arange(10.0)), batch_size=2)
    distributed = distribute(loader, rank, size)
    batches = distributed.epoch(0)
    return [next(batches)[0][0].tolist() for _ in range(4)], distributed.check()


@scenario
def dict_of_streams(rank: int, size: int) -> Any:
    """The second stream is half as long and starts again, on all ranks at the same step."""
    distributed = distribute(
        {"a": DataLoader(Numbers(24), batch_size=2), "b": [torch.ones(1)] * size}, rank, size
    )
    return [batch["a"].tolist() for batch, _ in distributed.epoch(0)]
