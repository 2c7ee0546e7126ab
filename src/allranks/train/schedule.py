"""The learning rate: scaled with the batch, warmed up, and moved by the user's scheduler."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from allranks.errors import UsageError


def scale_factor(how: str, global_batch: int, base: int) -> float:
    """By how much the learning rate grows when the batch grows from ``base``."""
    growth = global_batch / base
    return {"none": 1.0, "linear": growth, "sqrt": math.sqrt(growth)}[how]


def scale_rates(optimizers: Sequence[Any], scheduler: Any, factor: float) -> None:
    """Multiply the rates once, also those that a scheduler has already noted as its base.

    The optimizer remembers it, so that training on with it does not scale again.
    """
    for optimizer in optimizers:
        ratio = factor / getattr(optimizer, "_allranks_lr_factor", 1.0)
        optimizer._allranks_lr_factor = factor
        if ratio == 1.0:
            continue
        for group in optimizer.param_groups:
            group["lr"] *= ratio
            if "initial_lr" in group:
                group["initial_lr"] *= ratio
        for each in schedulers_of(scheduler):
            if getattr(each, "optimizer", None) is optimizer and hasattr(each, "base_lrs"):
                each.base_lrs = [rate * ratio for rate in each.base_lrs]


def schedulers_of(scheduler: Any) -> list[Any]:
    """A scheduler and those inside it (SequentialLR, ChainedScheduler); nothing for None."""
    if scheduler is None:
        return []
    if isinstance(scheduler, (list, tuple)):
        return [inner for each in scheduler for inner in schedulers_of(each)]
    inside = getattr(scheduler, "_schedulers", [])
    return [scheduler, *(inner for each in inside for inner in schedulers_of(each))]


def stepping(scheduler: Any) -> list[Any]:
    """What is advanced: the scheduler itself, or each of a list."""
    if scheduler is None:
        return []
    return list(scheduler) if isinstance(scheduler, (list, tuple)) else [scheduler]


class Warmup:
    """Raises the rate linearly over the first steps, whatever else moves it.

    The rate is changed around the optimizer's step and put back, because many schedulers compute
    the next rate from the present one.
    """

    def __init__(self, optimizers: Sequence[Any], steps: int) -> None:
        self._optimizers = optimizers
        self.steps = steps

    def around(self, done: int, step: Callable[[], None]) -> None:
        """Make the optimizer step number ``done + 1`` with its share of the rate."""
        if done >= self.steps:
            step()
            return
        # Looked up every time: an optimizer that loads a checkpoint makes its groups anew.
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        rates = [group["lr"] for group in groups]
        for group in groups:
            group["lr"] *= (done + 1) / (self.steps + 1)
        try:
            step()
        finally:
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate

    def factor(self, done: int) -> float:
        """What part of the rate the next step has."""
        return min(1.0, (done + 1) / (self.steps + 1)) if self.steps else 1.0


def advance(scheduler: Any, metrics: dict[str, float], monitor: str) -> None:
    """One epoch on; ReduceLROnPlateau is given the monitored metric."""
    for each in stepping(scheduler):
        if type(each).__name__ != "ReduceLROnPlateau":
            each.step()
        elif monitor in metrics:
            each.step(metrics[monitor])
        else:
            raise UsageError(
                f"ReduceLROnPlateau needs the metric '{monitor}', which there is none of.\n"
                f"There are: {', '.join(sorted(metrics)) or 'none'}. Set TrainConfig(monitor=…)."
            )
