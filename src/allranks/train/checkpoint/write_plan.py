"""`CheckpointState`: what a rank saves, and the plan of the tensors that it writes.

The plan needs no communication: every rank computes it from the same names and shapes. A shard is written
by the rank that has it, a replicated one by the first of its ranks, and tensors that all ranks hold whole
are distributed by size.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from allranks.errors import UsageError
from allranks.train.checkpoint.checkpoint_reader import pack_blob
from allranks.train.checkpoint.safetensors_file import dtype_name

SMALLEST_CUT = 1 << 20
"""Bytes below which a tensor is not split."""
Shape = tuple[int, ...]


@dataclass(frozen=True)
class FlatShard:
    """This rank's contiguous range of a flattened tensor, as ZeRO partitions hold it."""

    tensor: Tensor
    shape: Sequence[int]
    """Shape of the whole tensor."""
    start: int
    """Offset of the range in the flattened tensor."""


@dataclass(frozen=True)
class TensorChunk:
    """A box of a tensor that this rank writes."""

    key: str
    dtype: str
    whole: Shape
    offsets: Shape
    shape: Shape
    source: Tensor


@dataclass(frozen=True)
class WritePlan:
    """The chunks that one rank writes, and the keys that are tied to another key."""

    chunks: list[TensorChunk]
    ties: dict[str, str]


def is_shard(value: Any) -> bool:
    """Return whether it is a DTensor, without importing DTensor, which many trainings never load."""
    return hasattr(value, "device_mesh") and hasattr(value, "placements")


def make_write_plan(
    tensors: Mapping[str, Any], rank: int, size: int, *, everywhere: bool
) -> WritePlan:
    """Plan what this rank writes of ``tensors``.

    ``everywhere``: tensors that are neither DTensor nor FlatShard are the same on every rank and are
    distributed over the ranks; otherwise each rank writes its own.
    """
    ties = find_ties(tensors)
    chunks: list[TensorChunk] = []
    whole: dict[str, Tensor] = {}
    for key, value in tensors.items():
        if key in ties:
            continue
        if is_shard(value):
            chunks += _dtensor_chunks(key, value)
        elif isinstance(value, FlatShard):
            chunks += _flat_shard_chunks(key, value)
        else:
            whole[key] = value
    assigned = (
        distribute_tensors(whole, size) if everywhere else {key: [(0, None, rank)] for key in whole}
    )
    for key, cuts in assigned.items():
        chunks += (_rows(key, whole[key], a, b) for a, b, who in cuts if who == rank)
    return WritePlan(chunks, ties)


def name_chunks(chunks: list[TensorChunk]) -> dict[str, TensorChunk]:
    """Give each chunk a unique name in the file: the key, then key#1, key#2."""
    found: dict[str, TensorChunk] = {}
    keys = {chunk.key for chunk in chunks}
    for chunk in chunks:
        name, number = chunk.key, 0
        while name in found or (number and name in keys):
            number += 1
            name = f"{chunk.key}#{number}"
        found[name] = chunk
    return found


def find_ties(tensors: Mapping[str, Any]) -> dict[str, str]:
    """Map each key whose values are in the memory of an earlier key (tied weights) to that key."""
    first: dict[Any, str] = {}
    ties: dict[str, str] = {}
    for key, value in tensors.items():
        identity = _identity(key, value)
        if identity is not None and first.setdefault(identity, key) != key:
            ties[key] = first[identity]
    return ties


def _identity(key: str, value: Any) -> Any:
    """Return a value that is equal for two views of the same memory; None for an empty tensor."""
    local: Any = value
    rest: Any = None
    if is_shard(value):
        local, rest = value.to_local(), (tuple(value.shape), tuple(value.placements))
    elif isinstance(value, FlatShard):
        local, rest = value.tensor, (tuple(value.shape), value.start)
    _check_writable(key, local)
    if not local.numel():
        return None
    memory = (local.data_ptr(), str(local.device), local.is_conj(), local.is_neg())
    return (*memory, local.shape, local.stride(), local.dtype, rest)


def _check_writable(key: str, value: Tensor) -> None:
    if value.is_meta:
        raise UsageError(f"'{key}' is on the meta device: it has no values to save.")
    if value.layout is not torch.strided or value.is_quantized:
        kind = "quantized" if value.is_quantized else value.layout
        raise UsageError(f"'{key}' cannot be saved: it is {kind}. Only dense tensors can be saved.")


def distribute_tensors(
    whole: Mapping[str, Tensor], size: int
) -> dict[str, list[tuple[int, int | None, int]]]:
    """Distribute tensors over the ranks; return key → (first row, row after the last, rank).

    The largest go first, each to the rank with the fewest bytes so far. A tensor larger than the mean per
    rank is split along its first dimension.
    """
    most = max(sum(value.nbytes for value in whole.values()) // size, SMALLEST_CUT)
    cuts = [(key, *cut) for key, value in whole.items() for cut in _cuts(value, most)]
    loads = [(0, rank) for rank in range(size)]
    assigned: dict[str, list[tuple[int, int | None, int]]] = {key: [] for key in whole}
    for key, first, last, count in sorted(cuts, key=lambda cut: -cut[3]):
        load, rank = heapq.heappop(loads)
        assigned[key].append((first, last, rank))
        heapq.heappush(loads, (load + count, rank))
    return assigned


def _cuts(value: Tensor, most: int) -> Iterator[tuple[int, int | None, int]]:
    """Yield first row, row after the last, and bytes of each split."""
    rows = value.shape[0] if value.dim() else 1
    if value.nbytes <= most or rows <= 1:
        yield 0, None, value.nbytes
        return
    per_row = value.nbytes // rows
    step = max(1, most // per_row)
    for first in range(0, rows, step):
        last = min(rows, first + step)
        yield first, last, (last - first) * per_row


def _rows(key: str, value: Tensor, first: int, last: int | None) -> TensorChunk:
    source = value if last is None else value[first:last]
    offsets = tuple(first if i == 0 else 0 for i in range(value.dim()))
    dtype = dtype_name(value.dtype, key)
    return TensorChunk(key, dtype, tuple(value.shape), offsets, tuple(source.shape), source)


def _dtensor_chunks(key: str, value: Any) -> list[TensorChunk]:
    """Return this rank's shard, unless an earlier rank has a replica of it."""
    if any(each.is_partial() for each in value.placements):
        raise UsageError(
            f"'{key}' is a Partial DTensor, which cannot be saved: redistribute it first."
        )
    where = value.device_mesh.get_coordinate()
    if where is None:
        return []
    replica = any(
        at for at, each in zip(where, value.placements, strict=True) if each.is_replicate()
    )
    local = value.to_local()
    empty = not local.numel() and (value.numel() or any(where))
    if replica or empty:
        return []
    shape, offsets = _shard_box(value)
    if tuple(local.shape) != tuple(shape):
        raise UsageError(
            f"'{key}' has a placement that cannot be saved: its shard is {[*local.shape]}, "
            f"not {[*shape]}."
        )
    dtype = dtype_name(value.dtype, key)
    return [TensorChunk(key, dtype, tuple(value.shape), tuple(offsets), tuple(shape), local)]


def _shard_box(value: Any) -> tuple[Shape, Shape]:
    """Return shape and offsets of this rank's shard."""
    try:
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
    except ImportError:  # torch 2.4
        from torch.distributed._tensor._utils import compute_local_shape_and_global_offset

    shape, offsets = compute_local_shape_and_global_offset(
        value.shape, value.device_mesh, value.placements
    )
    return tuple(shape), tuple(offsets)


def _flat_shard_chunks(key: str, shard: FlatShard) -> list[TensorChunk]:
    flat, whole = shard.tensor.reshape(-1), tuple(shard.shape)
    chunks, at = [], 0
    for offsets, shape in boxes(whole, shard.start, flat.numel()):
        count = math.prod(shape)
        source = flat[at : at + count].view(shape)
        chunks.append(TensorChunk(key, dtype_name(flat.dtype, key), whole, offsets, shape, source))
        at += count
    return chunks


def boxes(shape: Shape, start: int, count: int) -> list[tuple[Shape, Shape]]:
    """Return offsets and shapes of the boxes that cover ``count`` values from ``start``, in order.

    These are the rest of a row, whole rows, and the beginning of a row, recursively inside rows.
    """
    found: list[tuple[Shape, Shape]] = []
    row = math.prod(shape[1:])
    while count > 0:
        first, skip = divmod(start, row)
        if len(shape) > 1 and (skip or count < row):
            take = min(row - skip, count)
            inner = boxes(shape[1:], skip, take)
            found += [((first, *offsets), (1, *box)) for offsets, box in inner]
        else:
            take = count // row * row
            rest = shape[1:]
            found.append(((first, *(0 for _ in rest)), (take // row, *rest)) if shape else ((), ()))
        start, count = start + take, count - take
    return found


@dataclass
class CheckpointState:
    """One rank's part of the training state. The tensors are live: nothing is copied yet."""

    tensors: Mapping[str, Any]
    """Key → a tensor, a DTensor or a FlatShard."""
    everywhere: bool = True
    """Whether whole tensors are the same on every rank, so that the ranks divide them for writing."""
    state: Any = None
    """On rank 0: all other state, in plain containers."""
    own: Any = None
    """State of this rank alone, such as its random generators."""

    def blobs(self, rank: int) -> dict[str, torch.Tensor]:
        """Return ``state`` and ``own`` as tensors of bytes."""
        parts = {"state": self.state if rank == 0 else None, f"rank.{rank}": self.own}
        return {key: pack_blob(value) for key, value in parts.items() if value is not None}

    def total_bytes(self, size: int) -> int:
        """Return the bytes of the tensors over all ``size`` ranks; the other state is small."""
        ties = find_ties(self.tensors)
        total: int = 0
        for key, value in self.tensors.items():
            if key in ties:
                continue
            if isinstance(value, FlatShard):
                total += torch.Size(value.shape).numel() * value.tensor.element_size()
            elif self.everywhere or is_shard(value):
                total += value.numel() * value.element_size()
            else:
                total += value.nbytes * size
        return total
