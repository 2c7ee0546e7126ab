"""The collectives as MPI calls: each prepares its tensors at once and returns the call to make.

Preparation happens in the caller's thread, which knows the GPU's stream; the returned call is made by the
thread that calls MPI.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from allranks.runtime.world.mpi.mpi_buffers import Buffer, overlap
from allranks.runtime.world.mpi.mpi_types import Reduction, reduction

Call = Callable[[], None]


class Calls:
    """The collectives of one communicator."""

    def __init__(self, mpi: Any, comm: Any) -> None:
        self.mpi = mpi
        self.comm = comm
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()

    # Reductions

    def allreduce(self, tensors: Sequence[Tensor], op: Any) -> Call:
        pairs = [self._to_reduce(tensor, op) for tensor in tensors]

        def call() -> None:
            for buffer, how in pairs:
                buffer.wait_ready()
                for part in buffer.parts():
                    self.comm.Allreduce(self.mpi.IN_PLACE, part, how.op)
                self._average(buffer, how)
                buffer.copy_back()

        return call

    def reduce(self, tensor: Tensor, op: Any, root: int) -> Call:
        """Reduce to the root, whose tensor alone changes."""
        own = self.rank == root
        how = reduction(self.mpi, op.op, tensor.dtype)
        buffer = Buffer(self.mpi, tensor, writes=own, dtype=how.dtype)

        def call() -> None:
            buffer.wait_ready()
            for part in buffer.parts():
                sent = self.mpi.IN_PLACE if own else part
                self.comm.Reduce(sent, part if own else None, how.op, root)
            if own:
                self._average(buffer, how)
                buffer.copy_back()

        return call

    def reduce_scatter(self, output: Tensor, parts: Sequence[Tensor], op: Any) -> Call:
        """Reduce part i of all ranks' lists to rank i's output; parts may differ in size."""
        self._check_parts("reduce_scatter", parts, output, self.rank)
        counts = [part.numel() for part in parts]
        flat = torch.cat([part.detach().reshape(-1) for part in parts])
        return self._reduce_scatter(output, flat, counts, op)

    def reduce_scatter_single(self, output: Tensor, whole: Tensor, op: Any) -> Call:
        self._check_whole("reduce_scatter_tensor", whole, output, "input", "output")
        if overlap(whole, output):
            whole = whole.clone()
        return self._reduce_scatter(output, whole, [output.numel()] * self.size, op)

    def _reduce_scatter(self, output: Tensor, whole: Tensor, counts: list[int], op: Any) -> Call:
        how = reduction(self.mpi, op.op, output.dtype)
        sent = Buffer(self.mpi, whole, writes=False, dtype=how.dtype)
        got = Buffer(self.mpi, output, reads=False, dtype=how.dtype)

        def call() -> None:
            sent.wait_ready()
            if len(set(counts)) == 1:
                self.comm.Reduce_scatter_block(sent.spec(), got.spec(), how.op)
            else:
                self.comm.Reduce_scatter(sent.spec(), got.spec(), counts, how.op)
            self._average(got, how)
            got.copy_back()

        return call

    def _to_reduce(self, tensor: Tensor, op: Any) -> tuple[Buffer, Reduction]:
        how = reduction(self.mpi, op.op, tensor.dtype)
        return Buffer(self.mpi, tensor, dtype=how.dtype), how

    def _average(self, buffer: Buffer, how: Reduction) -> None:
        if how.average:
            whole = not (buffer.host.is_floating_point() or buffer.host.is_complex())
            with torch.inference_mode(buffer.host.is_inference()):
                buffer.host.div_(self.size, rounding_mode="trunc" if whole else None)

    # From one, to one

    def broadcast(self, tensor: Tensor, root: int) -> Call:
        buffer = Buffer(self.mpi, tensor, reads=self.rank == root, writes=self.rank != root)

        def call() -> None:
            buffer.wait_ready()
            for part in buffer.parts():
                self.comm.Bcast(part, root)
            buffer.copy_back()

        return call

    def gather(self, outputs: Sequence[Tensor], tensor: Tensor, root: int) -> Call:
        sent = Buffer(self.mpi, tensor, writes=False)
        received = None
        if self.rank == root:
            self._check_parts("gather", outputs, tensor, root)
            received = self._receive_buffer(outputs)

        def call() -> None:
            sent.wait_ready()
            self.comm.Gatherv(sent.spec(), received and received[0].vector(received[1]), root)
            if received is not None:
                copy_to_outputs(received[0].host, outputs)

        return call

    def scatter(self, output: Tensor, parts: Sequence[Tensor], root: int) -> Call:
        got = Buffer(self.mpi, output, reads=False)
        whole: Any = None
        if self.rank == root:
            self._check_parts("scatter", parts, output, root)
            flat = torch.cat([part.detach().reshape(-1) for part in parts])
            whole = Buffer(self.mpi, flat, writes=False)

        def call() -> None:
            sent = None
            if whole is not None:
                whole.wait_ready()
                sent = whole.vector([part.numel() for part in parts])
            got.wait_ready()
            self.comm.Scatterv(sent, got.spec(), root)
            got.copy_back()

        return call

    # From all, to all

    def allgather(self, outputs: Sequence[Tensor], tensor: Tensor) -> Call:
        """Gather tensors of the ranks, which may differ in size."""
        self._check_parts("all_gather", outputs, tensor, self.rank)
        sent = Buffer(self.mpi, tensor, writes=False)
        flat, counts = self._receive_buffer(outputs)

        def call() -> None:
            sent.wait_ready()
            self.comm.Allgatherv(sent.spec(), flat.vector(counts))
            copy_to_outputs(flat.host, outputs)

        return call

    def allgather_single(self, output: Tensor, tensor: Tensor) -> Call:
        """Gather into one tensor. FSDP passes a part of the output as the input: then nothing is copied."""
        self._check_whole("all_gather_into_tensor", output, tensor, "output", "input")
        got = Buffer(self.mpi, output, reads=overlap(output, tensor))
        inside = self._is_own_part(got.host, tensor)
        if overlap(output, tensor) and not inside:
            tensor = tensor.clone()
        sent = None if inside else Buffer(self.mpi, tensor, writes=False)

        def call() -> None:
            if sent is not None:
                sent.wait_ready()
            got.wait_ready()
            self.comm.Allgather(self.mpi.IN_PLACE if sent is None else sent.spec(), got.spec())
            got.copy_back()

        return call

    def alltoall_single(
        self, output: Tensor, tensor: Tensor, to_get: Sequence[int], to_send: Sequence[int]
    ) -> Call:
        if overlap(output, tensor):
            tensor = tensor.clone()
        sent = Buffer(self.mpi, tensor, writes=False)
        got = Buffer(self.mpi, output, reads=False)
        send_counts, get_counts = self._rows(tensor, to_send), self._rows(output, to_get)

        def call() -> None:
            sent.wait_ready()
            self.comm.Alltoallv(sent.vector(send_counts), got.vector(get_counts))
            got.copy_back()

        return call

    def alltoall(self, outputs: Sequence[Tensor], tensors: Sequence[Tensor]) -> Call:
        if len(outputs) != self.size or len(tensors) != self.size:
            raise ValueError(
                f"all_to_all over {self.size} ranks needs {self.size} tensors each way, not "
                f"{len(tensors)} to send and {len(outputs)} to receive."
            )
        joined = torch.cat([each.detach().reshape(-1) for each in tensors])
        sent = Buffer(self.mpi, joined, writes=False)
        flat, counts = self._receive_buffer(outputs)

        def call() -> None:
            sent.wait_ready()
            self.comm.Alltoallv(sent.vector([t.numel() for t in tensors]), flat.vector(counts))
            copy_to_outputs(flat.host, outputs)

        return call

    # Sizes

    def _receive_buffer(self, outputs: Sequence[Tensor]) -> tuple[Buffer, list[int]]:
        counts = [each.numel() for each in outputs]
        flat = torch.empty(sum(counts), dtype=outputs[0].dtype)
        return Buffer(self.mpi, flat, reads=False), counts

    def _is_own_part(self, host: Tensor, tensor: Tensor) -> bool:
        start = host.data_ptr() + self.rank * tensor.numel() * tensor.element_size()
        return bool(tensor.is_contiguous() and tensor.data_ptr() == start and tensor.numel())

    def _rows(self, tensor: Tensor, splits: Sequence[int]) -> list[int]:
        """Return the elements for each rank, from rows for each rank; equal parts without splits."""
        rows = tensor.size(0) if tensor.dim() else 0
        if not splits:
            if rows % self.size:
                raise ValueError(
                    f"all_to_all_single cannot cut {rows} rows into {self.size} equal parts. "
                    "Give input_split_sizes and output_split_sizes."
                )
            return [tensor.numel() // self.size] * self.size
        if len(splits) != self.size or sum(splits) != rows:
            raise ValueError(
                f"all_to_all_single: the splits {list(splits)} must be {self.size} numbers that add "
                f"up to {rows}, the rows of the tensor."
            )
        return [each * (tensor.numel() // max(rows, 1)) for each in splits]

    def _check_parts(self, name: str, parts: Sequence[Tensor], own: Tensor, index: int) -> None:
        if len(parts) != self.size:
            raise ValueError(
                f"{name} over {self.size} ranks received a list of {len(parts)} tensors."
            )
        if {part.dtype for part in parts} != {own.dtype}:
            raise TypeError(f"{name}: all tensors must be of one type, {own.dtype}.")
        if parts[index].numel() != own.numel():
            raise ValueError(
                f"{name}: position {index} of the list holds {parts[index].numel()} elements, but this "
                f"rank's tensor {own.numel()}."
            )

    def _check_whole(self, name: str, whole: Tensor, part: Tensor, *names: str) -> None:
        if whole.numel() != part.numel() * self.size or whole.dtype != part.dtype:
            raise ValueError(
                f"{name} over {self.size} ranks: the {names[0]} has {whole.numel()} elements of "
                f"{whole.dtype}, which is not {self.size} times the {names[1]}'s {part.numel()} of "
                f"{part.dtype}."
            )


def copy_to_outputs(flat: Tensor, outputs: Sequence[Tensor]) -> None:
    """Copy one dense tensor to several outputs."""
    start = 0
    for output in outputs:
        end = start + output.numel()
        with torch.inference_mode(output.is_inference()):
            output.detach().copy_(flat[start:end].view(output.shape))
        start = end
