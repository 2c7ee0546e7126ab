"""Tensors as MPI buffers: a piece of memory and a type.

A contiguous tensor in main memory is passed without a copy. Any other one (a non-contiguous view, half
precision that is reduced, a GPU's) is copied to main memory; one that receives is copied back when the
call is done.
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
    """One tensor for one call. ``reads``: MPI reads its values; ``writes``: MPI changes them."""

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
        """Return the tensor itself where MPI can use it, else a dense copy in main memory."""
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

    def wait_ready(self) -> None:
        """Wait until the copy from a GPU is done."""
        if self._event is not None:
            self._event.synchronize()

    def copy_back(self) -> None:
        """Copy the result back to the tensor."""
        if self._copies_back:
            with torch.inference_mode(self.tensor.is_inference()):
                self.tensor.copy_(self.host)

    def datatype(self) -> Any:
        """Return MPI's type: the tensor's own for a reduction, integers of its size otherwise."""
        if self.reduced:
            return types.reduced_type(self.mpi, self.host.dtype)
        return types.reduced_type(self.mpi, types.transfer_type(self.host.dtype))

    def units(self) -> int:
        """Return the integers per element when it is not reduced: 2 for complex128."""
        size = self.host.dtype.itemsize
        return 1 if self.reduced or size <= 8 else size // 8

    def spec(self) -> list[Any]:
        """Return the buffer for mpi4py, which derives the counts."""
        return [self._memory(0, self.count), self.datatype()]

    def parts(self) -> Iterator[list[Any]]:
        """Return the buffer in pieces that every MPI can count."""
        for start in range(0, max(self.count, 1), CHUNK):
            length = min(CHUNK, self.count - start)
            yield [self._memory(start, length), self.datatype()]

    def vector(self, counts: Sequence[int]) -> list[Any]:
        """Return the buffer for a call in which every rank has its own count."""
        units = self.units()
        scaled = [count * units for count in counts]
        starts = [0, *accumulate(scaled)][:-1]
        return [self._memory(0, self.count), (scaled, starts), self.datatype()]

    def _memory(self, start: int, length: int) -> Any:
        size = self.host.dtype.itemsize
        return self.mpi.buffer.fromaddress(self.host.data_ptr() + start * size, length * size)


def overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors may share memory, which MPI forbids for sent and received data."""
    return bool(one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr() != 0)
