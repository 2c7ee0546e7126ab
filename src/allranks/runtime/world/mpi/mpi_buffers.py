"""Tensors as MPI sees them: a piece of memory and a type.

A contiguous tensor in main memory is given as it is, without a copy. Any other one (a view with gaps,
half precision that is reduced, a GPU's) travels through a dense copy in main memory; one that receives is
copied back when the call is done.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import torch

from allranks.runtime.world.mpi import mpi_types as types

CHUNK = 1 << 30
"""Elements of one reduction: MPI's older calls count in 32 bits."""


class Buffer:
    """One tensor for one call. ``reads``: MPI takes its values; ``writes``: MPI changes them."""

    def __init__(
        self,
        mpi: Any,
        tensor: torch.Tensor,
        *,
        reads: bool = True,
        writes: bool = True,
        dtype: torch.dtype | None = None,
    ) -> None:
        if tensor.layout != torch.strided or tensor.device.type not in ("cpu", "cuda"):
            raise TypeError(
                f"Backend mpi sends dense tensors on cpu or cuda, not {tensor.layout} on "
                f"{tensor.device}. Convert it first: .to_dense(), .cpu()."
            )
        self.mpi = mpi
        self.tensor = tensor.detach()
        self.reduced = dtype is not None
        self._event: Any = None
        self.host = self._in_memory(dtype or tensor.dtype, reads)
        self._copies_back = writes and self.host.data_ptr() != tensor.data_ptr()
        self.count = self.host.numel()

    def _in_memory(self, dtype: torch.dtype, reads: bool) -> torch.Tensor:
        """The tensor itself where that will do, else a dense copy in main memory."""
        tensor = self.tensor
        if tensor.is_conj() or tensor.is_neg():
            tensor = tensor.resolve_conj().resolve_neg()
        if tensor.device.type == "cpu" and tensor.is_contiguous():
            if tensor.dtype == dtype:
                return tensor
            if tensor.dtype == torch.bool and dtype == torch.uint8:
                return tensor.view(torch.uint8)
        on_gpu = tensor.device.type == "cuda"
        host = torch.empty(tensor.shape, dtype=dtype, pin_memory=on_gpu)
        if reads:
            host.copy_(tensor, non_blocking=on_gpu)
        if on_gpu:
            self._event = torch.cuda.Event()
            self._event.record(torch.cuda.current_stream(tensor.device))
        return host

    def ready(self) -> None:
        """Wait until a GPU has delivered the values."""
        if self._event is not None:
            self._event.synchronize()

    def done(self) -> None:
        """Give the result back to the tensor."""
        if self._copies_back:
            with torch.inference_mode(self.tensor.is_inference()):
                self.tensor.copy_(self.host)

    def datatype(self) -> Any:
        """MPI's type: the tensor's own for a reduction, integers of its size otherwise."""
        if self.reduced:
            return types.reduced_type(self.mpi, self.host.dtype)
        return types.reduced_type(self.mpi, types.moved_as(self.host.dtype))

    def units(self) -> int:
        """Integers per element when it only travels: 2 for complex128."""
        size = self.host.dtype.itemsize
        return 1 if self.reduced or size <= 8 else size // 8

    def spec(self) -> list[Any]:
        """What mpi4py takes; it counts, and knows which calls count per rank."""
        return [self._memory(0, self.count), self.datatype()]

    def parts(self) -> Iterator[list[Any]]:
        """The same in pieces that every MPI can count."""
        for start in range(0, max(self.count, 1), CHUNK):
            length = min(CHUNK, self.count - start)
            yield [self._memory(start, length), self.datatype()]

    def vector(self, counts: Sequence[int]) -> list[Any]:
        """The same for a call in which every rank has its own count."""
        units = self.units()
        scaled = [count * units for count in counts]
        starts = [0, *accumulate(scaled)][:-1]
        return [self._memory(0, self.count), (scaled, starts), self.datatype()]

    def _memory(self, start: int, length: int) -> Any:
        size = self.host.dtype.itemsize
        return self.mpi.buffer.fromaddress(self.host.data_ptr() + start * size, length * size)


def overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors may share memory, which MPI forbids for what is sent and received."""
    return bool(one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr() != 0)
