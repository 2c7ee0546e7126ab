"""Which bytes this rank writes, found without asking the others.

Every rank works from the same names and shapes, so all come to the same answer: a shard is written by
the rank that has it, one of several replicas by the first of them, and tensors that all ranks hold whole
are dealt out by size.
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
"""Tensors below this are not cut: a file of crumbs helps nobody."""
Shape = tuple[int, ...]


@dataclass(frozen=True)
class FlatShard:
    """A row of values out of a whole tensor laid flat: how ZeRO's partitions hold their share."""

    tensor: Tensor
    shape: Sequence[int]
    """Of the whole tensor."""
    start: int
    """Where the row begins in it."""


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
    """What one rank writes, and which keys are other names for the same values."""

    pieces: list[TensorChunk]
    ties: dict[str, str]


def is_shard(value: Any) -> bool:
    """Whether it is a DTensor, told without loading them: many torch builds and trainings have none."""
    return hasattr(value, "device_mesh") and hasattr(value, "placements")


def plan(tensors: Mapping[str, Any], rank: int, size: int, *, everywhere: bool) -> WritePlan:
    """The part of ``tensors`` that falls to this rank.

    ``everywhere``: tensors that are neither DTensor nor FlatShard are the same on every rank and are dealt
    out; otherwise what this rank passes is its own.
    """
    ties = tied(tensors)
    pieces: list[TensorChunk] = []
    whole: dict[str, Tensor] = {}
    for key, value in tensors.items():
        if key in ties:
            continue
        if is_shard(value):
            pieces += _of_shard(key, value)
        elif isinstance(value, FlatShard):
            pieces += _of_stretch(key, value)
        else:
            whole[key] = value
    dealt = deal(whole, size) if everywhere else {key: [(0, None, rank)] for key in whole}
    for key, cuts in dealt.items():
        pieces += (_rows(key, whole[key], a, b) for a, b, who in cuts if who == rank)
    return WritePlan(pieces, ties)


def named(pieces: list[TensorChunk]) -> dict[str, TensorChunk]:
    """Each piece under a name of its own in the file: the key, then key#1, key#2."""
    found: dict[str, TensorChunk] = {}
    keys = {piece.key for piece in pieces}
    for piece in pieces:
        name, number = piece.key, 0
        while name in found or (number and name in keys):
            number += 1
            name = f"{piece.key}#{number}"
        found[name] = piece
    return found


def tied(tensors: Mapping[str, Any]) -> dict[str, str]:
    """Keys whose values are another key's, in the same memory (tied weights) → that key."""
    first: dict[Any, str] = {}
    ties: dict[str, str] = {}
    for key, value in tensors.items():
        identity = _identity(key, value)
        if identity is not None and first.setdefault(identity, key) != key:
            ties[key] = first[identity]
    return ties


def _identity(key: str, value: Any) -> Any:
    """Equal for two views of the same values; None where there are none."""
    local: Any = value
    rest: Any = None
    if is_shard(value):
        local, rest = value.to_local(), (tuple(value.shape), tuple(value.placements))
    elif isinstance(value, FlatShard):
        local, rest = value.tensor, (tuple(value.shape), value.start)
    _refuse_unwritable(key, local)
    if not local.numel():
        return None
    memory = (local.data_ptr(), str(local.device), local.is_conj(), local.is_neg())
    return (*memory, local.shape, local.stride(), local.dtype, rest)


def _refuse_unwritable(key: str, value: Tensor) -> None:
    if value.is_meta:
        raise UsageError(f"'{key}' is on the meta device: it has no values to save.")
    if value.layout is not torch.strided or value.is_quantized:
        kind = "quantized" if value.is_quantized else value.layout
        raise UsageError(f"'{key}' cannot be saved: it is {kind}, and only dense tensors are.")


def deal(whole: Mapping[str, Tensor], size: int) -> dict[str, list[tuple[int, int | None, int]]]:
    """Key → (first row, row after the last, rank): the largest first, each to the least loaded.

    A tensor larger than a rank's fair share is cut along its first dimension.
    """
    share = max(sum(value.nbytes for value in whole.values()) // size, SMALLEST_CUT)
    cuts = [(key, *cut) for key, value in whole.items() for cut in _cuts(value, share)]
    loads = [(0, rank) for rank in range(size)]
    dealt: dict[str, list[tuple[int, int | None, int]]] = {key: [] for key in whole}
    for key, first, last, count in sorted(cuts, key=lambda cut: -cut[3]):
        load, rank = heapq.heappop(loads)
        dealt[key].append((first, last, rank))
        heapq.heappush(loads, (load + count, rank))
    return dealt


def _cuts(value: Tensor, share: int) -> Iterator[tuple[int, int | None, int]]:
    """First row, row after the last, bytes."""
    rows = value.shape[0] if value.dim() else 1
    if value.nbytes <= share or rows <= 1:
        yield 0, None, value.nbytes
        return
    per_row = value.nbytes // rows
    step = max(1, share // per_row)
    for first in range(0, rows, step):
        last = min(rows, first + step)
        yield first, last, (last - first) * per_row


def _rows(key: str, value: Tensor, first: int, last: int | None) -> TensorChunk:
    source = value if last is None else value[first:last]
    offsets = tuple(first if i == 0 else 0 for i in range(value.dim()))
    dtype = dtype_name(value.dtype, key)
    return TensorChunk(key, dtype, tuple(value.shape), offsets, tuple(source.shape), source)


def _of_shard(key: str, value: Any) -> list[TensorChunk]:
    """This rank's shard, unless an equal one lies on a rank before it."""
    if any(each.is_partial() for each in value.placements):
        raise UsageError(f"'{key}' is a sum not yet made (Partial): it cannot be saved as it is.")
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
    shape, offsets = _place(value)
    if tuple(local.shape) != tuple(shape):
        raise UsageError(
            f"'{key}' is spread in a way that cannot be saved: its shard is {[*local.shape]}, "
            f"not {[*shape]}."
        )
    dtype = dtype_name(value.dtype, key)
    return [TensorChunk(key, dtype, tuple(value.shape), tuple(offsets), tuple(shape), local)]


def _place(value: Any) -> tuple[Shape, Shape]:
    """Shape and offsets of this rank's shard."""
    try:
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
    except ImportError:  # torch 2.4
        from torch.distributed._tensor._utils import compute_local_shape_and_global_offset

    shape, offsets = compute_local_shape_and_global_offset(
        value.shape, value.device_mesh, value.placements
    )
    return tuple(shape), tuple(offsets)


def _of_stretch(key: str, stretch: FlatShard) -> list[TensorChunk]:
    flat, whole = stretch.tensor.reshape(-1), tuple(stretch.shape)
    pieces, at = [], 0
    for offsets, shape in boxes(whole, stretch.start, flat.numel()):
        count = math.prod(shape)
        source = flat[at : at + count].view(shape)
        pieces.append(TensorChunk(key, dtype_name(flat.dtype, key), whole, offsets, shape, source))
        at += count
    return pieces


def boxes(shape: Shape, start: int, count: int) -> list[tuple[Shape, Shape]]:
    """Offsets and shapes of the boxes that make up ``count`` values from ``start`` on, in their order.

    The rest of a row, whole rows, the beginning of a row; the same again inside of rows.
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
    """One rank's part of a training, live: nothing is copied yet."""

    tensors: Mapping[str, Any]
    """Key → a tensor, a DTensor or a FlatShard."""
    everywhere: bool = True
    """Whole tensors are the same on every rank: they are dealt out. Otherwise they are this rank's own."""
    state: Any = None
    """On rank 0: all that is no tensor, in plain containers."""
    own: Any = None
    """What this rank alone knows: its generators."""

    def blobs(self, rank: int) -> dict[str, torch.Tensor]:
        """``state`` and ``own`` as rows of bytes."""
        parts = {"state": self.state if rank == 0 else None, f"rank.{rank}": self.own}
        return {key: pack_blob(value) for key, value in parts.items() if value is not None}


def bytes_of(snapshot: CheckpointState, size: int) -> int:
    """How many bytes the tensors take over all ranks, seen from one of them; the rest is small."""
    ties = tied(snapshot.tensors)
    total: int = 0
    for key, value in snapshot.tensors.items():
        if key in ties:
            continue
        if isinstance(value, FlatShard):
            total += torch.Size(value.shape).numel() * value.tensor.element_size()
        elif snapshot.everywhere or is_shard(value):
            total += value.numel() * value.element_size()
        else:
            total += value.nbytes * size
    return total
