"""The process group: torch's methods, each one call of MPI in the group's thread.

torch reaches these methods from Python and, for DDP and the functional collectives, from C++. Some have
had two names (2.4 to 2.12, and 2.13): both are here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from queue import Empty
from typing import Any

import torch.distributed as dist
from torch import Tensor

from allranks.runtime.world.mpi import mpi_shutdown
from allranks.runtime.world.mpi.mpi_buffers import Buffer
from allranks.runtime.world.mpi.mpi_collectives import Call, Calls
from allranks.runtime.world.mpi.mpi_runtime import Runtime
from allranks.runtime.world.mpi.mpi_work import AllOf, DirectPointWork, MpiWork, PointWork


class MpiGroup(dist.ProcessGroup):  # type: ignore[misc]
    """A torch process group over one communicator of MPI."""

    supports_splitting = False
    supports_coalescing = False
    supports_time_estimate = False
    bound_device_id = None

    def __init__(self, runtime: Runtime, comm: Any, seconds: float) -> None:
        super().__init__(comm.Get_rank(), comm.Get_size())
        self._runtime = runtime
        self._mpi = runtime.mpi
        self._comm = comm
        self._calls = Calls(runtime.mpi, comm)
        self._set_seconds(seconds)
        self._worker = runtime.worker_for_group()
        self._together: list[MpiWork] | None = None
        self._name = self._description = ""
        self.closed = self.stuck = False
        runtime.groups.add(self)

    # Who we are

    def getBackendName(self) -> str:
        return "mpi"

    def rank(self) -> int:
        return self._calls.rank

    def size(self) -> int:
        return self._calls.size

    getRank, getSize, name = rank, size, getBackendName

    @property
    def group_name(self) -> str:
        return self._name

    @property
    def group_desc(self) -> str:
        return self._description

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, text: str) -> None:
        self._description = text

    def _get_backend(self, device: Any) -> MpiGroup:
        return self

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self._set_seconds(timeout.total_seconds())

    set_timeout = _set_default_timeout

    def _set_seconds(self, seconds: float) -> None:
        self._seconds = seconds
        self._runtime.seconds = max(self._runtime.seconds, seconds)

    # How a call is made

    def _submit(self, name: str, call: Call, result: Any, opts: Any = None) -> MpiWork:
        work = MpiWork(self._describe(name), self._limit(opts), result)

        def job() -> None:
            try:
                call()
            except BaseException as error:  # noqa: BLE001  raised by wait()
                work.finish(error)
            else:
                work.finish()

        self._open().put(job)
        return self._noted(work)

    def _message(self, name: str, buffer: Buffer, post: Callable[[], Any]) -> MpiWork:
        """Messages are posted at once: two ranks may well send to each other before they receive."""
        worker = self._open()
        kind = DirectPointWork if self._runtime.multiple else PointWork
        work = kind(
            self._describe(name),
            self._limit(None),
            [buffer.tensor],
            buffer.copy_back,
            self._mpi.Status(),
        )
        buffer.wait_ready()
        if self._runtime.multiple:
            work.set_request(post())
            self._runtime.keep(work)
            return self._noted(work)

        def job() -> PointWork | None:
            try:
                work.set_request(post())
            except BaseException as error:  # noqa: BLE001  raised by wait()
                work.finish(error)
                return None
            return work

        worker.put(job)
        return self._noted(work)

    def _describe(self, name: str) -> str:
        return f"{name} over {self.size()} ranks, on rank {self.rank()},"

    def _limit(self, opts: Any) -> float:
        own = getattr(opts, "timeout", None)
        seconds: float = own.total_seconds() if own is not None else 0.0
        return seconds if seconds > 0 else self._seconds

    def _open(self) -> Any:
        if self.closed:
            raise RuntimeError("This process group was destroyed.")
        mpi_shutdown.forget_exit()
        return self._worker

    def _noted(self, work: MpiWork) -> MpiWork:
        if self._together is not None:
            self._together.append(work)
        return work

    def _start_coalescing(self, device: Any) -> None:
        self._together = []

    def _end_coalescing(self, device: Any) -> MpiWork:
        works, self._together = self._together or [], None
        return AllOf(works)

    # Reductions

    def allreduce(self, tensors: Any, opts: Any = dist.ReduceOp.SUM) -> MpiWork:
        tensors = _listed(tensors)
        return self._submit("all_reduce", self._calls.allreduce(tensors, _op(opts)), tensors, opts)

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Any, opts: Any) -> MpiWork:
        (tensor,) = _listed(tensors)
        call = self._calls.reduce(tensor, _op(opts), opts.rootRank)
        return self._submit("reduce", call, [tensor], opts)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = dist.ReduceOp.SUM) -> MpiWork:
        calls = [
            self._calls.reduce_scatter(output, parts, _op(opts))
            for output, parts in zip(_listed(outputs), inputs, strict=True)
        ]
        return self._submit("reduce_scatter", _all(calls), outputs, opts)

    def reduce_scatter_single(
        self, output: Tensor, whole: Tensor, opts: Any = dist.ReduceOp.SUM
    ) -> MpiWork:
        call = self._calls.reduce_scatter_single(output, whole, _op(opts))
        return self._submit("reduce_scatter_tensor", call, output, opts)

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = dist.ReduceOp.SUM
    ) -> MpiWork:
        calls = [
            self._calls.reduce_scatter_single(output, whole, _op(opts))
            for output, whole in zip(outputs, inputs, strict=True)
        ]
        return self._submit("reduce_scatter_tensor", _all(calls), outputs, opts)

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # From one, to one

    def broadcast(self, tensors: Any, opts: Any) -> MpiWork:
        tensors = _listed(tensors)
        root = getattr(opts, "rootRank", opts)
        calls = [self._calls.broadcast(tensor, root) for tensor in tensors]
        return self._submit("broadcast", _all(calls), tensors, opts)

    def gather(self, outputs: Any, inputs: Any, opts: Any) -> MpiWork:
        (tensor,) = _listed(inputs)
        call = self._calls.gather(outputs[0] if outputs else [], tensor, opts.rootRank)
        return self._submit("gather", call, outputs, opts)

    def scatter(self, outputs: Any, inputs: Any, opts: Any) -> MpiWork:
        (tensor,) = _listed(outputs)
        call = self._calls.scatter(tensor, inputs[0] if inputs else [], opts.rootRank)
        return self._submit("scatter", call, [tensor], opts)

    # From all, to all

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> MpiWork:
        inputs = _listed(inputs)
        lists = outputs if isinstance(inputs, list) and isinstance(outputs[0], list) else [outputs]
        calls = [
            self._calls.allgather(each, tensor) for each, tensor in zip(lists, inputs, strict=True)
        ]
        return self._submit("all_gather", _all(calls), outputs, opts)

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> MpiWork:
        """``outputs`` has one list per rank here, where ``allgather`` has one list per tensor."""
        calls = [
            self._calls.allgather([of_rank[index] for of_rank in outputs], tensor)
            for index, tensor in enumerate(inputs)
        ]
        return self._submit("all_gather", _all(calls), outputs, opts)

    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> MpiWork:
        call = self._calls.allgather_single(output, tensor)
        return self._submit("all_gather_into_tensor", call, output, opts)

    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> MpiWork:
        calls = [
            self._calls.allgather_single(output, tensor)
            for output, tensor in zip(outputs, inputs, strict=True)
        ]
        return self._submit("all_gather_into_tensor", _all(calls), outputs, opts)

    def all_to_all_single(
        self,
        output: Tensor,
        tensor: Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any = None,
    ) -> MpiWork:
        call = self._calls.alltoall_single(output, tensor, output_splits, input_splits)
        return self._submit("all_to_all_single", call, output, opts)

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> MpiWork:
        return self._submit("all_to_all", self._calls.alltoall(outputs, inputs), outputs, opts)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    alltoall_base = all_to_all_single

    def barrier(self, opts: Any = None) -> MpiWork:
        return self._submit("barrier", self._comm.Barrier, [], opts)

    # Messages

    def send(self, tensors: Any, to: int, tag: int = 0) -> MpiWork:
        (tensor,) = _listed(tensors)
        buffer = Buffer(self._mpi, tensor, writes=False)
        return self._message("send", buffer, lambda: self._comm.Isend(buffer.spec(), to, tag))

    def recv(self, tensors: Any, source: int, tag: int = 0) -> MpiWork:
        (tensor,) = _listed(tensors)
        buffer = Buffer(self._mpi, tensor, reads=False)
        return self._message("recv", buffer, lambda: self._comm.Irecv(buffer.spec(), source, tag))

    def recv_anysource(self, tensors: Any, tag: int = 0) -> MpiWork:
        return self.recv(tensors, self._mpi.ANY_SOURCE, tag)

    # The end

    def shutdown(self) -> None:
        """Finish what was asked for, then give the communicator back."""
        mpi_shutdown.record_pending_exit()
        self.close(mpi_shutdown.FAILURE_SECONDS if mpi_shutdown.exit_code() else None)

    def close(self, seconds: float | None = None) -> None:
        """The same within a limit, else the group's; a call still under way then makes it ``stuck``."""
        if self.closed:
            return
        self.closed = True
        limit = self._seconds if seconds is None else min(seconds, self._seconds)
        if self._worker is self._runtime.worker:
            try:
                self._worker.call(self._comm.Free, limit)
            except Empty:
                self.stuck = True
        elif self._worker.stop(limit):
            self._comm.Free()
        else:
            self.stuck = True

    def abort(self) -> None:
        """MPI takes no call back; the end of the process ends the job."""
        self.closed = True


def _all(calls: Sequence[Call]) -> Call:
    """Several calls as one."""

    def call() -> None:
        for each in calls:
            each()

    return call if len(calls) != 1 else calls[0]


def _listed(tensors: Any) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _op(opts: Any) -> Any:
    """The reduction, from options or given alone."""
    op = getattr(opts, "reduceOp", opts)
    return op if hasattr(op, "op") else dist.ReduceOp(op)
