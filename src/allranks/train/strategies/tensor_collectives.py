"""Broadcast and average many tensors in a few large buckets, and clip gradients over the ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

BUCKET_BYTES = 25 * 2**20


def broadcast_tensors(tensors: Iterable[Tensor]) -> None:
    """Overwrite each tensor with rank 0's, of any type."""
    for bucket in _buckets(tensor.detach() for tensor in tensors):
        flat = _flatten_dense_tensors([*bucket])
        dist.broadcast(flat.view(torch.uint8), src=0)  # as bytes: gloo does not support every type
        torch._foreach_copy_([*bucket], [*_unflatten_dense_tensors(flat, bucket)])


def average_gradients(parameters: Iterable[nn.Parameter], size: int) -> None:
    """Average the existing gradients over the ranks."""
    there = (value.grad.detach() for value in parameters if value.grad is not None)
    for bucket in _buckets(there):
        flat = _flatten_dense_tensors([*bucket])
        dist.all_reduce(flat)  # gloo cannot average
        flat.div_(size)
        torch._foreach_copy_([*bucket], [*_unflatten_dense_tensors(flat, bucket)])


def clip_gradients(
    parameters: Iterable[nn.Parameter], max_norm: float, device: torch.device
) -> Tensor:
    """Clip gradients to a total norm of ``max_norm``; return the previous norm.

    Sharded gradients need one small all-reduce; nothing waits for the device.
    """
    whole: list[Tensor] = []
    parts: list[Tensor] = []
    for value in parameters:
        if value.grad is not None:
            local = getattr(value.grad, "_local_tensor", None)
            (whole if local is None else parts).append(value.grad if local is None else local)
    with torch.no_grad():
        square = _square_norm(whole, device)
        if parts:
            shared = _square_norm(parts, device)
            dist.all_reduce(shared)
            square = square + shared
        norm = square.sqrt()
        scale = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        for group in _group_by_type([*whole, *parts]):
            torch._foreach_mul_(group, scale.to(group[0].device))
    return norm


def _square_norm(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    """Return the sum of squares in at least fp32, as a scalar on the device."""
    total = torch.zeros((), device=device)
    for group in _group_by_type(tensors):
        wide = torch.promote_types(group[0].dtype.to_real(), torch.float32)
        norms = torch.stack(torch._foreach_norm(group, 2, dtype=wide))
        total = total + norms.square().sum().to(device)
    return total


def _group_by_type(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    groups: dict[Any, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault((tensor.device, tensor.dtype), []).append(tensor)
    return [*groups.values()]


def _buckets(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Yield lists of tensors of one type and device, each up to a bucket's size."""
    for group in _group_by_type(tensors):
        bucket: list[Tensor] = []
        held = 0
        for tensor in group:
            size = tensor.numel() * tensor.element_size()
            if bucket and held + size > BUCKET_BYTES:
                yield bucket
                bucket, held = [], 0
            bucket.append(tensor)
            held += size
        if bucket:
            yield bucket
