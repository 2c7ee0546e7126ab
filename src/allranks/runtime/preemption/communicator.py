"""A few numbers summed over all ranks, by whatever connects them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from allranks.errors import UsageError

Numbers = list[float]


class Alone:
    """One process: what it says is agreed."""

    rank, size = 0, 1
    late = False
    """Whether a sum is better read at the next look: reading at once would wait for the GPU."""

    def start(self, numbers: Sequence[float]) -> Callable[[], Numbers]:
        """Send numbers off; the result, when called, gives their sums over the ranks."""
        return lambda: list(numbers)


class Torch(Alone):
    """The ranks of ``torch.distributed``, whatever its backend."""

    def __init__(self, dist: Any) -> None:
        self._dist = dist
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.late = str(dist.get_backend()) == "nccl"

    def start(self, numbers: Sequence[float]) -> Callable[[], Numbers]:
        import torch

        vector = torch.tensor(list(numbers), dtype=torch.float64)
        if not self.late:
            self._dist.all_reduce(vector)
            return lambda: list(vector.tolist())
        vector = vector.cuda(non_blocking=True)
        self._dist.all_reduce(vector)
        arrived = torch.cuda.Event()
        host = torch.empty(vector.shape, dtype=vector.dtype, pin_memory=True)
        host.copy_(vector, non_blocking=True)
        arrived.record()

        def read() -> Numbers:
            arrived.synchronize()
            return list(host.tolist())

        return read


class Horovod(Alone):
    """The ranks of a script that uses Horovod and not torch.distributed."""

    def __init__(self, hvd: Any) -> None:
        self._hvd = hvd
        self.rank, self.size = hvd.rank(), hvd.size()

    def start(self, numbers: Sequence[float]) -> Callable[[], Numbers]:
        import torch

        vector = torch.tensor(list(numbers), dtype=torch.float64)
        summed = self._hvd.allreduce(vector, op=self._hvd.Sum, name="allranks.deadline")
        return lambda: list(summed.tolist())


def find_talk() -> Alone:
    """By what this process is connected now; nothing is imported or initialised for it."""
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        return Torch(dist) if dist.get_world_size() > 1 else Alone()
    hvd = sys.modules.get("horovod.torch")
    if hvd is not None and hvd.is_initialized():
        return Horovod(hvd) if hvd.size() > 1 else Alone()
    return Unconnected()


class Unconnected(Alone):
    """Nothing connects this process with others, or nothing that is known here."""

    def refuse(self, rank: int, size: int) -> None:
        """Ranks of PyTorch that are not connected yet would each leave at a step of its own."""
        if size > 1 and "torch" in sys.modules and not _OTHERS & sys.modules.keys():
            raise UsageError(
                f"near() was called on rank {rank} of {size} before torch.distributed was "
                "initialised: the ranks cannot agree on a step.\n"
                "Call allranks.init() or init_process_group() before the loop. Ranks that train "
                "apart from each other: start each with WORLD_SIZE=1 and RANK=0."
            )


_OTHERS = {"jax", "tensorflow"}
"""Frameworks with connections of their own, beside which PyTorch may be loaded for its data."""
