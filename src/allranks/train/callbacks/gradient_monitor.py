"""Gradient statistics per parameter group, gathered on the device and read once."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from allranks.errors import UsageError
from allranks.train.callbacks.base import Callback, TrainerView


class GradientMonitor(Callback):
    """Logs norm, mean, standard deviation and maximum of the gradients every N steps.

    Names are ``grad/norm`` with one parameter group, else ``grad/0/norm``, or ``grad/head/norm`` for
    a group with a "name". Sharded gradients are summed over their shards, so the numbers are those of
    the whole model on every rank. Reading them waits for the device: do not use it at every step.
    """

    def __init__(self, every: int = 50) -> None:
        if every < 1:
            raise UsageError(f"GradientMonitor: every={every} must be at least 1.")
        self.every = every

    def on_before_step(self, trainer: TrainerView) -> None:
        if (trainer.step + 1) % self.every:
            return
        groups = [group for each in trainer.optimizers for group in each.param_groups]
        for index, group in enumerate(groups):
            gradients = [each.grad for each in group["params"] if each.grad is not None]
            if not gradients:
                continue
            place = f"{group.get('name', index)}/" if len(groups) > 1 else ""
            for name, value in gradient_statistics(gradients).items():
                trainer.log(f"grad/{place}{name}", value)


def gradient_statistics(gradients: Iterable[Any]) -> dict[str, float]:
    """Return norm, mean, std (of the population) and largest absolute value over all elements."""
    total, squares, count, largest = 0.0, 0.0, 0.0, 0.0
    for same in _by_layout(gradients).values():
        part = _part_statistics(same)
        total, squares, count = total + part[0], squares + part[1], count + part[2]
        largest = max(largest, part[3]) if not math.isnan(part[3]) else math.nan
    mean = total / count if count else 0.0
    spread = squares / count - mean * mean if count else 0.0
    return {
        "norm": math.sqrt(squares),
        "mean": mean,
        "std": math.sqrt(max(spread, 0.0)),
        "max": largest,
    }


def _by_layout(gradients: Iterable[Any]) -> dict[Any, list[Any]]:
    """Group gradients by device and by how they are sharded."""
    groups: dict[Any, list[Any]] = {}
    for each in gradients:
        if any(placed.is_partial() for placed in getattr(each, "placements", ())):
            each = each.full_tensor()
        layout = (getattr(each, "device_mesh", None), getattr(each, "placements", ()))
        groups.setdefault((*layout, each.device), []).append(each)
    return groups


def _part_statistics(gradients: list[Any]) -> list[float]:
    """Return sum, sum of squares, count and largest absolute value, over all shards."""
    import torch

    mesh = getattr(gradients[0], "device_mesh", None)
    local = [_plain(each) for each in gradients]
    kept = [each for each in local if each.numel()]
    rows = [torch.stack([each.sum(), each.square().sum(), each.abs().max()]) for each in kept]
    table = torch.stack(rows).cpu().double() if rows else torch.zeros(1, 3, dtype=torch.float64)
    count = sum(each.numel() for each in kept)
    total, squares = table[:, 0].sum(), table[:, 1].sum()
    result = torch.stack([total, squares, torch.tensor(float(count)).double(), table[:, 2].max()])
    if mesh is not None:
        result = _over_shards(result, gradients[0])
    return [float(value) for value in result.tolist()]


def _plain(gradient: Any) -> Any:
    """Return this rank's part as real float32 numbers: bfloat16 sums would lose most digits."""
    import torch

    local = gradient.to_local() if hasattr(gradient, "to_local") else gradient
    local = local.detach()
    if local.is_sparse:
        local = local.coalesce().values()
    if local.is_complex():
        local = torch.view_as_real(local)
    return local.float() if local.element_size() < 4 else local


def _over_shards(values: Any, gradient: Any) -> Any:
    """Sum the first three values and take the maximum of the last over the ranks that hold shards."""
    import torch.distributed as dist

    mesh = gradient.device_mesh
    values = values.to(mesh.device_type)
    for dimension, placement in enumerate(gradient.placements):
        if placement.is_shard():
            group = mesh.get_group(dimension)
            dist.all_reduce(values[:3], group=group)
            dist.all_reduce(values[3:], op=dist.ReduceOp.MAX, group=group)
    return values.cpu()
