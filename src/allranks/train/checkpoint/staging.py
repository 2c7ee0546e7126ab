"""A copy of what is to be written, in memory of the host that is used again for every save.

The memory is laid out as the file will be, so that writing it is writing the memory. From a GPU the copy
runs beside the computation: the GPU's own queue waits for it before it changes the values, the host does
not wait at all.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from allranks.train.checkpoint.safetensors_file import TensorEntry, bits

SLAB = 256 << 20
"""Bytes of one piece of memory. A power of two: torch rounds pinned memory up to one."""

_ROUND = 16 << 20
_BLOCK = 8 << 20
_FOR_THREADS = 128 << 20
"""Below this many bytes a thread costs more than it saves."""
_MOST_THREADS = 4
"""Memory has no more to give, and other ranks of the node copy at the same time."""


class Staging:
    """Memory for one rank's file, and the copying into it."""

    def __init__(self) -> None:
        self._slabs: list[Tensor] = []
        self._streams: dict[Any, Any] = {}
        self._events: list[Any] = []
        self._used = 0

    def copy(self, placed: Sequence[tuple[TensorEntry, Tensor]]) -> None:
        """Begin to copy every tensor to its place; the present streams wait for it, we do not."""
        self._used = sum(entry.size for entry, _ in placed)
        self._reserve(any(tensor.is_cuda for _, tensor in placed))
        self._events = []
        devices = {tensor.device for _, tensor in placed if tensor.is_cuda}
        for device in devices:
            self._copy_beside(device, [(e, t) for e, t in placed if t.device == device])
        here = [(entry, tensor) for entry, tensor in placed if not tensor.is_cuda]
        self._copy_here([(e.start, bits(t)) for e, t in here if _in_order(t)])
        for entry, tensor in here:
            if not _in_order(tensor):  # one at a time: these take memory besides
                self._put(entry.start, bits(tensor.cpu()))

    def _copy_here(self, rows: Sequence[tuple[int, Tensor]]) -> None:
        """By plain memory copies in a few threads, none of which holds up the others' Python.

        torch's own copying meets at a barrier after each tensor, which costs most of the time on a
        machine that is busy with loader workers.
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
        """To, from and how many bytes, in blocks that threads can share out among them."""
        done = 0
        while done < row.numel():
            number, offset = divmod(start + done, SLAB)
            slab = self._slabs[number]
            count = min(row.numel() - done, slab.numel() - offset, _BLOCK)
            yield slab.data_ptr() + offset, row.data_ptr() + done, count
            done += count

    def _copy_beside(self, device: Any, placed: Sequence[tuple[TensorEntry, Tensor]]) -> None:
        stream = self._streams.setdefault(device, None) or torch.cuda.Stream(device)
        self._streams[device] = stream
        present = torch.cuda.current_stream(device)
        stream.wait_stream(present)
        with torch.cuda.stream(stream):
            for entry, tensor in placed:
                self._put(entry.start, bits(tensor))
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

    def _put(self, start: int, row: Tensor) -> None:
        done = 0
        while done < row.numel():
            number, offset = divmod(start + done, SLAB)
            slab = self._slabs[number]
            count = min(row.numel() - done, slab.numel() - offset)
            slab[offset : offset + count].copy_(row[done : done + count], non_blocking=True)
            done += count

    def _reserve(self, pinned: bool) -> None:
        """All slabs are full ones but the last, which has some more than it needs: sizes vary a little."""
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
    """Whether its bytes lie in this machine's memory as they are to be written."""
    plain = not tensor.is_conj() and not tensor.is_neg()
    return tensor.device.type == "cpu" and tensor.is_contiguous() and plain


def _memory(size: int, pinned: bool) -> Tensor:
    """Pinned for a GPU. The first copy into other memory takes about three times as long as later ones.

    Asking for huge pages mostly halves that and now and then multiplies it, when Linux must make them first.
    """
    return torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
