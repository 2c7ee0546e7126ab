"""Small collectives outside the training step: sums of a few numbers, objects, a barrier.

    SingleProcess              one rank
    TorchCommunicator          torch.distributed, over gloo or MPI: never waits for a GPU
    HorovodCommunicator        horovod.torch
    TensorFlowCommunicator     a tf.distribute strategy

Every method but `call_on_rank_zero`'s function is collective: all ranks call the same ones in the same
order, from one thread. Values travel pickled, between ranks of one launch only.
"""

from __future__ import annotations

import itertools
import pickle
import sys
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from allranks.errors import AllranksError, UsageError, WorldError
from allranks.runtime.world.model import World
from allranks.runtime.world.process_group import choose_interface, world

Numbers = list[float]
T = TypeVar("T")


class Communicator(ABC):
    """The ranks that this process can reach; an implementation only has to add numbers up."""

    rank: int
    size: int
    is_deferred = False
    """Whether to read a sum at a later step: the ranks compute on GPUs and need not wait for each other."""

    @abstractmethod
    def start_sum(self, values: Sequence[float]) -> Callable[[], Numbers]:
        """Start adding up each number over the ranks; the returned function waits for the sums."""

    def sum(self, values: Sequence[float]) -> Numbers:
        """Return the sum of each number over the ranks."""
        return self.start_sum(values)()

    def max(self, values: Sequence[float]) -> Numbers:
        """Return the largest of each number over the ranks."""
        return [max(each) for each in zip(*self.all_gather(list(values)), strict=True)]

    def all_gather(self, value: T) -> list[T]:
        """Return the value of every rank, by rank."""
        content = pickle.dumps(value)
        sizes = [len(content) if rank == self.rank else 0 for rank in range(self.size)]
        ends = list(itertools.accumulate(int(each) for each in self.sum(sizes)))
        starts = [0, *ends]
        padded = bytes(starts[self.rank]) + content + bytes(ends[-1] - ends[self.rank])
        joined = bytes(int(each) for each in self.sum(padded))
        return [pickle.loads(joined[start:end]) for start, end in zip(starts, ends, strict=False)]

    def broadcast(self, value: T) -> T:
        """Return rank 0's value."""
        return self.all_gather(value if self.rank == 0 else None)[0]  # type: ignore[return-value]

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        self.sum([0.0])

    def call_on_rank_zero(self, function: Callable[[], T]) -> T:
        """Call the function on rank 0 and return its result everywhere; its error is raised everywhere."""
        result, problem = None, ""
        if self.rank == 0:
            try:
                result = function()
            except AllranksError as error:
                if self.size == 1:
                    raise
                problem = str(error)
        result, problem = self.broadcast((result, problem))
        if problem:
            raise UsageError(problem)
        return result  # type: ignore[return-value]


class SingleProcess(Communicator):
    """One rank: what it gives is what it gets."""

    rank, size = 0, 1

    def start_sum(self, values: Sequence[float]) -> Callable[[], Numbers]:
        return lambda: [float(each) for each in values]

    def all_gather(self, value: T) -> list[T]:
        return [value]


class TorchCommunicator(Communicator):
    """The ranks of ``torch.distributed``, whatever its backend."""

    def __init__(self, dist: Any) -> None:
        self._dist = dist
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.is_deferred = not _runs_on_cpu(dist)

    def start_sum(self, values: Sequence[float]) -> Callable[[], Numbers]:
        import torch

        vector = torch.tensor([float(each) for each in values], dtype=torch.float64)
        work = self._dist.all_reduce(vector, group=_cpu_group(self._dist), async_op=True)

        def wait() -> Numbers:
            work.wait()
            return list(vector.tolist())

        return wait

    def all_gather(self, value: T) -> list[T]:
        found: list[Any] = [None] * self.size
        self._dist.all_gather_object(found, value, group=_cpu_group(self._dist))
        return found

    def broadcast(self, value: T) -> T:
        box = [value]
        self._dist.broadcast_object_list(box, src=0, group=_cpu_group(self._dist))
        return box[0]


class HorovodCommunicator(Communicator):
    """The ranks of a script that uses Horovod and not torch.distributed."""

    def __init__(self, hvd: Any) -> None:
        self._hvd = hvd
        self.rank, self.size = hvd.rank(), hvd.size()

    def start_sum(self, values: Sequence[float]) -> Callable[[], Numbers]:
        import torch

        vector = torch.tensor([float(each) for each in values], dtype=torch.float64)
        summed = self._hvd.allreduce(vector, op=self._hvd.Sum, name="allranks.sum")
        return lambda: list(summed.tolist())

    def all_gather(self, value: T) -> list[T]:
        return list(self._hvd.allgather_object(value, name="allranks.all_gather"))


class TensorFlowCommunicator(Communicator):
    """The workers of a ``tf.distribute`` strategy, one per process."""

    def __init__(self, tf: Any, strategy: Any, workers: World) -> None:
        self._tf, self._strategy = tf, strategy
        self.rank, self.size = workers.rank, workers.size
        self._replicas = strategy.num_replicas_in_sync // workers.size

    def start_sum(self, values: Sequence[float]) -> Callable[[], Numbers]:
        own = [float(each) for each in values]

        def of_replica(context: Any) -> Any:
            first = context.replica_id_in_sync_group % self._replicas == 0
            return self._tf.constant(own if first else [0.0] * len(own), dtype=self._tf.float64)

        vectors = self._strategy.experimental_distribute_values_from_function(of_replica)
        summed = self._strategy.reduce("SUM", vectors, axis=None)
        return lambda: [float(each) for each in summed.numpy()]


def find_communicator() -> Communicator | None:
    """Return what connects this process now, None when nothing does; imports and starts nothing."""
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        return TorchCommunicator(dist) if dist.get_world_size() > 1 else SingleProcess()
    hvd = sys.modules.get("horovod.torch")
    if hvd is not None and hvd.is_initialized():
        return HorovodCommunicator(hvd) if hvd.size() > 1 else SingleProcess()
    return None


def get_communicator(size: int) -> Communicator:
    """Return the communicator of ``size`` ranks; an error where several are not connected yet."""
    if size == 1:
        return SingleProcess()
    found = find_communicator()
    if found is None:
        raise WorldError(
            f"This needs the other {size - 1} ranks, but torch.distributed is not initialized. "
            "Call allranks.init() first."
        )
    return found


_side_group: tuple[Any, Any] | None = None
"""The default group, and the gloo group that was made beside it."""


def _runs_on_cpu(dist: Any) -> bool:
    return str(dist.get_backend()) in ("gloo", "mpi")


def _cpu_group(dist: Any) -> Any:
    """Return the default group when it is gloo or MPI, else one gloo group beside it, made once.

    All ranks must come here together the first time.
    """
    global _side_group
    default = dist.group.WORLD
    if _runs_on_cpu(dist):
        return default
    found = _side_group[1]() if _side_group and _side_group[0]() is default else None
    if found is None:
        with suppress(WorldError):  # a script that made its NCCL group itself has not chosen one
            choose_interface(world())
        found = dist.new_group(backend="gloo")
        # Weak, so that the end of the group is the end of its threads.
        _side_group = (weakref.ref(default), weakref.ref(found))
    return found
