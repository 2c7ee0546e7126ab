"""A copy of what is to be written, in memory of the host that is used again for every save.

The memory is laid out as the file will be, so that writing it is writing the memory. From a GPU the copy
runs beside the computation: the GPU's own queue waits for it before it changes the values, the host does
not wait at all.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from allranks.checkpoint.shards import Entry, bits

SLAB = 256 << 20
"""Bytes of one piece of memory. A power of two: torch rounds pinned memory up to one."""


class Staging:
    """Memory for one rank's file, and the copying into it."""

    def __init__(self) -> None:
        self._slabs: list[Tensor] = []
        self._streams: dict[Any, Any] = {}
        self._events: list[Any] = []
        self._used = 0

    def copy(self, placed: Sequence[tuple[Entry, Tensor]]) -> None:
        """Begin to copy every tensor to its place; the present streams wait for it, we do not."""
        self._used = sum(entry.size for entry, _ in placed)
        self._reserve(any(tensor.is_cuda for _, tensor in placed))
        self._events = []
        devices = {tensor.device for _, tensor in placed if tensor.is_cuda}
        for entry, tensor in placed:
            if not tensor.is_cuda:
                self._put(entry.start, bits(tensor), wait=True)
        for device in devices:
            self._copy_beside(device, [(e, t) for e, t in placed if t.device == device])

    def _copy_beside(self, device: Any, placed: Sequence[tuple[Entry, Tensor]]) -> None:
        stream = self._streams.setdefault(device, None) or torch.cuda.Stream(device)
        self._streams[device] = stream
        present = torch.cuda.current_stream(device)
        stream.wait_stream(present)
        with torch.cuda.stream(stream):
            for entry, tensor in placed:
                self._put(entry.start, bits(tensor), wait=False)
            event = torch.cuda.Event(blocking=True)  # the writer sleeps until then
            event.record(stream)
        present.wait_event(event)
        self._events.append(event)

    def parts(self) -> Iterator[memoryview]:
        """The copied bytes in their order, once they have all arrived."""
        for event in self._events:
            event.synchronize()
        for number, slab in enumerate(self._slabs):
            count = min(slab.numel(), self._used - number * SLAB)
            if count > 0:
                yield memoryview(slab[:count].numpy())

    def _put(self, start: int, row: Tensor, *, wait: bool) -> None:
        done = 0
        while done < row.numel():
            number, offset = divmod(start + done, SLAB)
            slab = self._slabs[number]
            count = min(row.numel() - done, slab.numel() - offset)
            slab[offset : offset + count].copy_(row[done : done + count], non_blocking=not wait)
            done += count

    def _reserve(self, pinned: bool) -> None:
        """All slabs are full ones but the last, which grows when it must."""
        sizes = [SLAB] * (self._used // SLAB) + [self._used % SLAB] * bool(self._used % SLAB)
        for number, size in enumerate(sizes):
            if number == len(self._slabs):
                self._slabs.append(_memory(size, pinned))
            elif self._slabs[number].numel() < size or (
                pinned and not self._slabs[number].is_pinned()
            ):
                self._slabs[number] = _memory(size, pinned)


def _memory(size: int, pinned: bool) -> Tensor:
    """Pinned for a GPU. Otherwise in huge pages where Linux has them: the first touch costs far less."""
    if pinned:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)
    area = mmap.mmap(-1, size)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            area.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(area, dtype=torch.uint8)
