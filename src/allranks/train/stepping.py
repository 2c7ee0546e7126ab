"""One batch → gradients → perhaps an optimizer step. The hot path: a closure per way of stepping.

plain      forward, backward, step: no accumulation, clipping, scaling, average
full       all of those
closure    an optimizer that evaluates the loss several times per step (LBFGS)
manual     the user's training_step(model, batch, step) drives several optimizers
custom     the user's own optimize_step(model, optimizer, loss_fn, batch)
free       no gradients: an optimizer that asks and is told (nevergrad)

Each is called with ``(data, share)`` and returns whether an optimizer step was made.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from allranks.data import Share
from allranks.data.move import count_samples
from allranks.strategies.base import Strategy
from allranks.train.ema import Average
from allranks.train.meter import Meter
from allranks.train.objective import loss_and_metrics
from allranks.train.precision import Precision
from allranks.train.schedule import Warmup, stepping

Step = Callable[[Any, "Share | None"], bool]


@dataclass
class Parts:
    """What every way of stepping may need."""

    objective: nn.Module
    """What is called in training: wrapped, perhaps compiled."""
    model: nn.Module
    strategy: Strategy
    optimizers: Sequence[Any]
    names: Sequence[str]
    """The optimizers' names where the user gave a dict, else their positions."""
    meter: Meter
    precision: Precision
    batch_size: int | None
    total_of: Callable[[int], int | None]
    """Samples of a global batch of this epoch, by its number."""
    rank: int = 0
    size: int = 1
    accumulate: int = 1
    clip_norm: float | None = None
    clip_value: float | None = None
    scheduler: Any = None
    scheduler_per_step: bool = True
    warmup: Warmup | None = None
    average: Average | None = None
    before_step: Callable[[], None] | None = None
    last_batch: bool = False
    """No batch follows in this epoch, so a short accumulation window closes. Set by the loop."""
    steps_done: int = 0
    grad_norm: torch.Tensor | None = None
    keep_loss: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.detach
    """Detaches; with CUDA graphs also clones, since the next replay overwrites the loss."""

    @property
    def parameters(self) -> list[torch.Tensor]:
        return [p for o in self.optimizers for group in o.param_groups for p in group["params"]]

    @property
    def is_plain(self) -> bool:
        simple = self.accumulate == 1 and self.clip_norm is None and self.clip_value is None
        bare = self.precision.scaler is None and self.warmup is None and self.average is None
        return simple and bare and self.before_step is None and len(self.optimizers) == 1


def plain_step(parts: Parts) -> Step:
    """Forward, backward, step; nothing else costs anything."""
    objective, add, keep, full = parts.objective, parts.meter.add, parts.keep_loss, parts.batch_size
    backward, optimizer = parts.strategy.backward, parts.optimizers[0]
    step, zero = optimizer.step, optimizer.zero_grad
    schedulers = stepping(parts.scheduler) if parts.scheduler_per_step else []

    def run(data: Any, share: Share | None) -> bool:
        loss, metrics = objective(data)
        if share is None:
            backward(loss)
            add(keep(loss), metrics, full or count_samples(data))
        else:
            backward(loss * share.weight)
            add(keep(loss), metrics, share.count)
        step()
        zero()
        for scheduler in schedulers:
            scheduler.step()
        return True

    return run


def full_step(parts: Parts) -> Step:
    """With accumulation, clipping, loss scaling, warm-up and the moving average."""
    window = Window(parts.accumulate, parts.total_of)
    scaler = parts.precision.scaler

    def run(data: Any, share: Share | None) -> bool:
        weight, closes = window.enter(parts.last_batch)
        if parts.accumulate > 1:
            parts.strategy.begin_micro(closes)
        loss, metrics = parts.objective(data)
        factor = weight if share is None else weight * share.weight
        scaled = loss if factor == 1.0 else loss * factor
        parts.strategy.backward(scaled if scaler is None else scaler.scale(scaled))
        count = share.count if share is not None else parts.batch_size or count_samples(data)
        parts.meter.add(parts.keep_loss(loss), metrics, count)
        if closes:
            update(parts, parts.optimizers, window.correction())
        return closes

    return run


def update(parts: Parts, optimizers: Sequence[Any], correction: float = 1.0) -> None:
    """From gradients to new weights: unscale, clip, step, zero, average, schedule."""
    scaler = parts.precision.scaler
    parameters = [p for o in optimizers for group in o.param_groups for p in group["params"]]
    if scaler is not None and (parts.clip_norm or parts.clip_value or parts.before_step):
        for optimizer in optimizers:
            scaler.unscale_(optimizer)
    if correction != 1.0:
        torch._foreach_mul_([p.grad for p in parameters if p.grad is not None], correction)
    if parts.before_step is not None:
        parts.before_step()
    if parts.clip_value is not None:
        nn.utils.clip_grad_value_(parameters, parts.clip_value)
    if parts.clip_norm is not None:
        parts.grad_norm = parts.strategy.clip_norm(parameters, parts.clip_norm)

    def step() -> None:
        for optimizer in optimizers:
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)

    if parts.warmup is None:
        step()
    else:
        parts.warmup.around(parts.steps_done, step)
    if scaler is not None:
        scaler.update()
    for optimizer in optimizers:
        optimizer.zero_grad()
    if parts.average is not None:
        parts.average.update()
    if parts.scheduler_per_step:
        for scheduler in stepping(parts.scheduler):
            scheduler.step()
    parts.steps_done += 1


class Window:
    """The batches whose gradients make one step, each weighted by its share of the samples."""

    def __init__(self, size: int, total_of: Callable[[int], int | None]) -> None:
        self._size = size
        self._total_of = total_of
        self._batch = 0
        self._inside = 0
        self._closed = size

    def enter(self, last: bool) -> tuple[float, bool]:
        """The next batch's weight in its window, and whether it closes the window."""
        first = self._batch - self._inside
        totals = [self._total_of(number) for number in range(first, first + self._size)]
        known = [total for total in totals if total]
        own = totals[self._inside]
        self._inside += 1
        self._batch += 1
        closes = last or self._inside == self._size
        self._closed = self._inside
        # Without totals every batch weighs the same; correction() puts a short window right.
        weight = own / sum(known) if own and totals[0] else 1 / self._size
        self._exact = bool(own and totals[0])
        if closes:
            self._inside = 0
        if last:
            self._batch = 0
        return weight, closes

    def correction(self) -> float:
        """What the summed gradients of a window that was cut short are multiplied by."""
        return 1.0 if self._exact else self._size / self._closed


def closure_step(parts: Parts) -> Step:
    """LBFGS and its like: the optimizer itself asks for loss and gradients, as often as it wants.

    It decides by the loss, so all ranks are given the same one: the mean over their samples.
    """
    optimizer = parts.optimizers[0]
    schedulers = stepping(parts.scheduler) if parts.scheduler_per_step else []

    def run(data: Any, share: Share | None) -> bool:
        first: list[Any] = []

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss, metrics = parts.objective(data)
            weighted = loss if share is None else loss * share.weight
            parts.strategy.backward(weighted)
            if parts.clip_norm is not None:
                parts.grad_norm = parts.strategy.clip_norm(parts.parameters, parts.clip_norm)
            if not first:
                first.extend((loss.detach(), metrics))
            return _mean_over_ranks(weighted.detach(), parts.size)

        optimizer.step(closure)
        count = share.count if share is not None else parts.batch_size or count_samples(data)
        parts.meter.add(first[0], first[1], count)
        for scheduler in schedulers:
            scheduler.step()
        parts.steps_done += 1
        return True

    return run


def _mean_over_ranks(value: torch.Tensor, size: int) -> torch.Tensor:
    if size > 1:
        value = value.clone()
        dist.all_reduce(value)
        value /= size
    return value


def needs_closure(optimizer: Any) -> bool:
    """Whether ``step`` cannot be called without a function that gives the loss."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


class ManualStep:
    """What a user's ``training_step(model, batch, step)`` drives: several optimizers, any order."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.optimizers = dict(zip(parts.names, parts.optimizers, strict=True))
        self.weight = 1.0

    def backward(self, loss: torch.Tensor) -> None:
        """Gradients of this loss, weighted as this rank's batch demands."""
        scaler = self._parts.precision.scaler
        scaled = loss if self.weight == 1.0 else loss * self.weight
        self._parts.strategy.backward(scaled if scaler is None else scaler.scale(scaled))

    def update(self, name: str | int) -> None:
        """Average this optimizer's gradients over the ranks, clip, step, and set them to zero."""
        optimizer = self.optimizers[str(name)]
        held = [p for group in optimizer.param_groups for p in group["params"]]
        self._parts.strategy.reduce_gradients(held)
        parts = self._parts
        average, scheduler = parts.average, parts.scheduler
        parts.average = parts.scheduler = None  # once per batch, below
        try:
            update(parts, [optimizer])
        finally:
            parts.average, parts.scheduler = average, scheduler


def manual_step(parts: Parts, training_step: Callable[..., Any]) -> Step:
    """The user's function makes the steps; a batch counts as one step."""
    control = ManualStep(parts)

    def run(data: Any, share: Share | None) -> bool:
        control.weight = 1.0 if share is None else share.weight
        before = parts.steps_done
        result = training_step(parts.model, data, control)
        parts.steps_done = before + 1
        loss, metrics = _manual_result(result)
        count = share.count if share is not None else parts.batch_size or count_samples(data)
        parts.meter.add(loss.detach(), metrics, count)
        for optimizer in parts.optimizers:
            optimizer.zero_grad()
        if parts.average is not None:
            parts.average.update()
        if parts.scheduler_per_step:
            for scheduler in stepping(parts.scheduler):
                scheduler.step()
        return True

    return run


def _manual_result(result: Any) -> tuple[torch.Tensor, Mapping[str, Any]]:
    """A step of several losses may return a dict without one called "loss", or nothing."""
    if result is None or (isinstance(result, Mapping) and "loss" not in result):
        return torch.zeros(()), result or {}
    return loss_and_metrics(result, "training_step")


def custom_step(parts: Parts, optimize_step: Callable[..., Any], loss_fn: Any) -> Step:
    """The user's own ``optimize_step(model, optimizer, loss_fn, batch)`` does the whole step."""

    def run(data: Any, share: Share | None) -> bool:
        result = optimize_step(parts.model, parts.optimizers[0], loss_fn, data)
        loss, metrics = (
            loss_and_metrics(result, "optimize_step")
            if isinstance(result, (torch.Tensor, Mapping))
            else (torch.as_tensor(result[0]), result[1] or {})
        )
        count = share.count if share is not None else parts.batch_size or count_samples(data)
        parts.meter.add(loss.detach(), metrics, count)
        if parts.scheduler_per_step:
            for scheduler in stepping(parts.scheduler):
                scheduler.step()
        parts.steps_done += 1
        return True

    return run


def gradient_free_step(parts: Parts, optimizer: Any) -> Step:
    """Ask for a candidate, try it on all ranks' data, tell the loss. Rank 0 holds the optimizer."""
    parameters = [p for p in parts.model.parameters() if p.requires_grad]

    def run(data: Any, share: Share | None) -> bool:
        with torch.no_grad():
            return tried(data, share)

    def tried(data: Any, share: Share | None) -> bool:
        candidate = optimizer.ask() if parts.rank == 0 else None
        vector = nn.utils.parameters_to_vector(parameters)
        if candidate is not None:
            vector.copy_(torch.as_tensor(candidate.value).reshape(-1))
        if parts.size > 1:
            dist.broadcast(vector, 0)
        nn.utils.vector_to_parameters(vector, parameters)
        loss, metrics = parts.objective(data)
        count = share.count if share is not None else parts.batch_size or count_samples(data)
        seen = torch.stack([loss.double() * count, torch.tensor(float(count)).to(loss.device)])
        if parts.size > 1:
            dist.all_reduce(seen)
        if candidate is not None:
            optimizer.tell(candidate, (seen[0] / seen[1]).item())
        parts.meter.add(loss.detach(), metrics, count)
        parts.steps_done += 1
        return True

    return run


def is_gradient_free(optimizer: Any) -> bool:
    """nevergrad's way: ask for a candidate, tell its loss."""
    return hasattr(optimizer, "ask") and hasattr(optimizer, "tell")
