"""Copy the tensors of a checkpoint to host memory, which is reused for every save.

The memory has the layout of the file, so that it can be written as it is. Copies from a GPU overlap with
the computation: the GPU's stream waits for them before it changes the values, the host does not wait.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from allranks.train.checkpoint.safetensors_file import TensorEntry, byte_view

SLAB = 256 << 20
"""Bytes of one block of memory: a power of two, since torch rounds pinned memory up to one."""

_ROUND = 16 << 20
_BLOCK = 8 << 20
_FOR_THREADS = 128 << 20
"""Bytes below which threads cost more than they save."""
_MOST_THREADS = 4
"""More threads do not increase the bandwidth, and other ranks of the node copy at the same time."""


class Staging:
    """Host memory for one rank's file, and the copies into it."""

    def __init__(self) -> None:
        self._slabs: list[Tensor] = []
        self._streams: dict[Any, Any] = {}
        self._events: list[Any] = []
        self._used = 0

    def copy(self, placed: Sequence[tuple[TensorEntry, Tensor]]) -> None:
        """Start to copy every tensor; the current CUDA streams wait for it, the host does not."""
        self._used = sum(entry.size for entry, _ in placed)
        self._reserve(any(tensor.is_cuda for _, tensor in placed))
        self._events = []
        devices = {tensor.device for _, tensor in placed if tensor.is_cuda}
        for device in devices:
            self._copy_from_gpu(device, [(e, t) for e, t in placed if t.device == device])
        here = [(entry, tensor) for entry, tensor in placed if not tensor.is_cuda]
        self._copy_on_cpu([(e.start, byte_view(t)) for e, t in here if _in_order(t)])
        for entry, tensor in here:
            if not _in_order(tensor):  # one at a time: these need additional memory
                self._put(entry.start, byte_view(tensor.cpu()))

    def _copy_on_cpu(self, rows: Sequence[tuple[int, Tensor]]) -> None:
        """Copy CPU memory with memmove in a few threads, which release the GIL.

        torch's parallel copy has a barrier after each tensor, which takes most of the time on a machine
        that is busy with loader workers.
        """
        blocks = [block for start, row in rows for block in self._blocks(start, row)]
        small = sum(count for _, _, count in blocks) < _FOR_THREADS
        if small or (threads := _threads()) == 1:
            for block in blocks:
                ctypes.memmove(*block)
            return
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda block: ctypes.memmove(*block), blocks))

    def _blocks(self, start: int, row: Tensor) -> Iterator[tuple[int, int, int]]:
        """Yield target, source and number of bytes of blocks that threads can copy independently."""
        done = 0
        while done < row.numel():
            number, offset = divmod(start + done, SLAB)
            slab = self._slabs[number]
            count = min(row.numel() - done, slab.numel() - offset, _BLOCK)
            yield slab.data_ptr() + offset, row.data_ptr() + done, count
            done += count

    def _copy_from_gpu(self, device: Any, placed: Sequence[tuple[TensorEntry, Tensor]]) -> None:
        stream = self._streams.setdefault(device, None) or torch.cuda.Stream(device)
        self._streams[device] = stream
        present = torch.cuda.current_stream(device)
        stream.wait_stream(present)
        with torch.cuda.stream(stream):
            for entry, tensor in placed:
                self._put(entry.start, byte_view(tensor))
            event = torch.cuda.Event(blocking=True)  # the writing thread sleeps until then
            event.record(stream)
        present.wait_event(event)
        self._events.append(event)

    def parts(self) -> Iterator[memoryview]:
        """Yield the copied bytes in order, once all copies are complete."""
        for event in self._events:
            event.synchronize()
        for number, slab in enumerate(self._slabs):
            count = min(slab.numel(), self._used - number * SLAB)
            if count > 0:
                yield memoryview(slab[:count].numpy())

    def _put(self, start: int, row: Tensor) -> None:
        done = 0
        while done < row.numel():
            number, offset = divmod(start + done, SLAB)
            slab = self._slabs[number]
            count = min(row.numel() - done, slab.numel() - offset)
            slab[offset : offset + count].copy_(row[done : done + count], non_blocking=True)
            done += count

    def _reserve(self, pinned: bool) -> None:
        """Allocate full slabs and a smaller last one, rounded up since sizes vary a little between saves."""
        rest = -(-(self._used % SLAB) // _ROUND) * _ROUND
        sizes = [SLAB] * (self._used // SLAB) + [rest] * bool(rest)
        for number, size in enumerate(sizes):
            if number == len(self._slabs):
                self._slabs.append(_memory(size, pinned))
            elif self._slabs[number].numel() < size or (
                pinned and not self._slabs[number].is_pinned()
            ):
                self._slabs[number] = _memory(size, pinned)


def _threads() -> int:
    return min(_MOST_THREADS, len(os.sched_getaffinity(0)))


def _in_order(tensor: Tensor) -> bool:
    """Return whether its bytes are in CPU memory in the order in which they are written."""
    plain = not tensor.is_conj() and not tensor.is_neg()
    return tensor.device.type == "cpu" and tensor.is_contiguous() and plain


def _memory(size: int, pinned: bool) -> Tensor:
    """Allocate host memory, pinned for copies from a GPU.

    The first copy into unpinned memory takes about three times as long as later ones. Huge pages mostly
    halve that, but sometimes multiply it, when Linux must create them first.
    """
    return torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
