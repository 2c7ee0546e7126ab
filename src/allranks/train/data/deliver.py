"""The last step of a feed: batches to the device. On a CPU it is no step at all."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

from allranks.train.data.move import leaves, pinned, to_device


def delivered(
    pairs: Iterator[Any], device: torch.device, dtype: torch.dtype | None, depth: int
) -> Iterator[Any]:
    """``(batch, share)`` pairs with the batch on ``device``, ``depth`` of them ahead on a GPU."""
    if device.type == "cuda":
        return _ahead(pairs, device, dtype, max(depth, 1))
    if device.type == "cpu" and dtype is None:
        return pairs
    return _moved(pairs, device, dtype)


def _moved(pairs: Iterator[Any], device: torch.device, dtype: torch.dtype | None) -> Iterator[Any]:
    for batch, share in pairs:
        yield to_device(batch, device, dtype), share


def _ahead(
    pairs: Iterator[Any], device: torch.device, dtype: torch.dtype | None, depth: int
) -> Iterator[Any]:
    """Copies on a stream of their own, so that they run under the kernels of the step before."""
    side = torch.cuda.Stream(device)
    waiting: deque[Any] = deque()

    def fetch() -> None:
        pair = next(pairs, None)
        if pair is None:
            return
        batch, share = pair
        with torch.cuda.stream(side):
            moved = to_device(pinned(batch), device, dtype, non_blocking=True)
        waiting.append((moved, share, side.record_event()))

    for _ in range(depth):
        fetch()
    while waiting:
        batch, share, copied = waiting.popleft()
        current = torch.cuda.current_stream(device)
        current.wait_event(copied)
        _used_by(batch, current)
        fetch()
        yield batch, share


def _used_by(batch: Any, stream: Any) -> None:
    """Keep the allocator from giving the memory away while the step still reads it."""
    for leaf in leaves(batch):
        if isinstance(leaf, torch.Tensor) and leaf.is_cuda:
            leaf.record_stream(stream)
