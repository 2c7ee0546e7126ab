"""Move batches of any structure to a device, list their tensors, count their samples."""

from __future__ import annotations

import copy
import dataclasses
from collections import deque
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import numpy as np
import torch


def to_device(
    batch: Any,
    device: torch.device | str,
    dtype: torch.dtype | None = None,
    non_blocking: bool = False,
) -> Any:
    """Move tensors in dicts, lists, tuples, dataclasses and objects with ``to`` to ``device``.

    ``dtype`` converts floating-point tensors only. An object with its own ``to`` is moved by it and
    keeps its types, unless it is a mapping. Everything else is returned unchanged.
    """
    if isinstance(batch, torch.Tensor):
        kind = dtype if dtype is not None and batch.is_floating_point() else None
        return batch.to(device, kind, non_blocking=non_blocking)
    return _convert_values(
        batch, lambda value: to_device(value, device, dtype, non_blocking), device
    )


def pin_batch(batch: Any) -> Any:
    """Copy the CPU tensors of a batch to page-locked memory, for asynchronous copies to a GPU."""
    if isinstance(batch, torch.Tensor):
        return batch.pin_memory() if batch.device.type == "cpu" else batch
    if _moves_itself(batch):
        return batch.pin_memory() if hasattr(batch, "pin_memory") else batch
    return _convert_values(batch, pin_batch, None)


def _convert_values(batch: Any, change: Any, device: Any) -> Any:
    """Return the same container with each value changed."""
    kind = type(batch)
    if kind is list:
        return [change(value) for value in batch]
    if kind is tuple:
        return tuple(change(value) for value in batch)
    if kind is dict:
        return {key: change(value) for key, value in batch.items()}
    if batch is None or kind in (str, bytes, int, float, bool):
        return batch
    if device is not None and _moves_itself(batch):
        return _move_by_method(batch, change, device)
    return _convert_subclass(batch, change)


def _convert_subclass(batch: Any, change: Any) -> Any:
    """Copy subclasses of the containers, and dataclasses, without running their constructors."""
    if isinstance(batch, tuple):
        values = [change(value) for value in batch]
        return type(batch)(*values) if hasattr(batch, "_fields") else type(batch)(values)
    made: Any
    if isinstance(batch, list | MutableMapping):
        made = copy.copy(batch)
        for key in range(len(batch)) if isinstance(batch, list) else list(batch):
            made[key] = change(batch[key])
        return made
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        made = copy.copy(batch)
        for entry in dataclasses.fields(batch):
            object.__setattr__(made, entry.name, change(getattr(batch, entry.name)))
        return made
    return batch


def _moves_itself(batch: Any) -> bool:
    return callable(getattr(batch, "to", None)) and not isinstance(batch, type)


def _move_by_method(batch: Any, change: Any, device: Any) -> Any:
    try:
        made = batch.to(device, non_blocking=True)
    except TypeError:  # a `to` that takes a device and nothing more
        made = batch.to(device)
    made = batch if made is None else made
    return _convert_subclass(made, change) if isinstance(made, MutableMapping) else made


def leaves(batch: Any) -> Iterator[Any]:
    """Yield the tensors and arrays of a batch, in order."""
    if isinstance(batch, torch.Tensor | np.ndarray):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from leaves(value)
    elif isinstance(batch, list | tuple):
        for value in batch:
            yield from leaves(value)
    elif dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        for entry in dataclasses.fields(batch):
            yield from leaves(getattr(batch, entry.name))
    elif _moves_itself(batch) and hasattr(batch, "__dict__"):
        yield from leaves(vars(batch))


def count_samples(batch: Any) -> int:
    """Return the samples in a batch: the first dimension of its first tensor, or 1 without one."""
    first = batch[0] if type(batch) in (list, tuple) and batch else batch
    if type(first) is torch.Tensor and first.ndim:  # nearly all batches end here
        return int(first.shape[0])
    graphs = getattr(batch, "num_graphs", None)  # a batch of graphs joins them along the nodes
    if isinstance(graphs, int):
        return graphs
    for leaf in leaves(batch):
        if leaf.ndim:
            return int(leaf.shape[0])
    return len(batch) if isinstance(batch, list) else 1


def prefetch_to_device(
    pairs: Iterator[Any], device: torch.device, dtype: torch.dtype | None, depth: int
) -> Iterator[Any]:
    """Yield ``(batch, weight)`` pairs with the batch on ``device``, copied ``depth`` ahead on a GPU."""
    if device.type == "cuda":
        return _copy_ahead(pairs, device, dtype, max(depth, 1))
    if device.type == "cpu" and dtype is None:
        return pairs
    return _move_each(pairs, device, dtype)


def _move_each(
    pairs: Iterator[Any], device: torch.device, dtype: torch.dtype | None
) -> Iterator[Any]:
    for batch, weight in pairs:
        yield to_device(batch, device, dtype), weight


def _copy_ahead(
    pairs: Iterator[Any], device: torch.device, dtype: torch.dtype | None, depth: int
) -> Iterator[Any]:
    """Copy on a separate CUDA stream, so that copies overlap with the kernels of the previous step."""
    side = torch.cuda.Stream(device)
    waiting: deque[Any] = deque()

    def fetch() -> None:
        pair = next(pairs, None)
        if pair is None:
            return
        batch, weight = pair
        with torch.cuda.stream(side):
            moved = to_device(pin_batch(batch), device, dtype, non_blocking=True)
        waiting.append((moved, weight, side.record_event()))

    for _ in range(depth):
        fetch()
    while waiting:
        batch, weight, copied = waiting.popleft()
        current = torch.cuda.current_stream(device)
        current.wait_event(copied)
        _record_use(batch, current)
        fetch()
        yield batch, weight


def _record_use(batch: Any, stream: Any) -> None:
    """Keep the allocator from reusing the memory while the step still reads it."""
    for leaf in leaves(batch):
        if isinstance(leaf, torch.Tensor) and leaf.is_cuda:
            leaf.record_stream(stream)
