"""One batch → gradients → an optimizer step. The hot path: a closure per way of stepping.

plain      forward, backward, step: no accumulation, clipping, scaling, average
full       all of those

Each is called with ``(data, share)`` and returns whether an optimizer step was made. The ways that the
user or the optimizer drives are in `special_steps`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from allranks.train.data import BatchWeight
from allranks.train.data.batch_transfer import count_samples
from allranks.train.ema import Average
from allranks.train.meter import Meter
from allranks.train.objective import shortest
from allranks.train.precision import Precision
from allranks.train.schedule import Warmup, stepping
from allranks.train.strategies.base import Strategy

if TYPE_CHECKING:
    from allranks.train.marks import Marks
    from allranks.train.special_steps import Search

Step = Callable[[Any, "BatchWeight | None"], bool]


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
    search: Search | None = None
    """The gradient-free way; it leaves the best that it found after the last step."""
    last_batch: bool = False
    """No batch follows in this epoch, so a short accumulation window closes. Set by the loop."""
    batch: int = 0
    """The present batch's number in its epoch, where several make a step. Set by the loop."""
    steps_done: int = 0
    grad_norm: torch.Tensor | None = None
    keep_loss: Callable[[torch.Tensor], Any] = torch.Tensor.detach
    """On a GPU detaches; with CUDA graphs also clones, since the next replay overwrites the loss. On
    a CPU reads it: a tensor kept alive would move the heap under the next step and cost more."""

    @property
    def parameters(self) -> list[torch.Tensor]:
        return [p for o in self.optimizers for group in o.param_groups for p in group["params"]]

    def count(self, data: Any, batch_weight: BatchWeight | None) -> int:
        """How many of this rank's samples the batch counts for."""
        return (
            batch_weight.count
            if batch_weight is not None
            else self.batch_size or count_samples(data)
        )

    @property
    def is_plain(self) -> bool:
        simple = self.accumulate == 1 and self.clip_norm is None and self.clip_value is None
        bare = self.precision.scaler is None and self.warmup is None and self.average is None
        return simple and bare and self.before_step is None and len(self.optimizers) == 1


def plain_step(parts: Parts) -> Step:
    """Forward, backward, step; nothing else costs anything."""
    add, keep, full = parts.meter.add, parts.keep_loss, parts.batch_size
    objective = shortest(parts.objective)
    backward, optimizer = _backward(parts.strategy), parts.optimizers[0]
    step, zero = _stepper(parts.strategy, optimizer), optimizer.zero_grad
    schedulers = stepping(parts.scheduler) if parts.scheduler_per_step else []

    def run(data: Any, batch_weight: BatchWeight | None) -> bool:
        loss, metrics = objective(data)
        if batch_weight is None:
            backward(loss)
            add(keep(loss), metrics, full or count_samples(data))
        else:
            backward(loss * batch_weight.factor)
            add(keep(loss), metrics, batch_weight.count)
        step()
        zero()
        for scheduler in schedulers:
            scheduler.step()
        return True

    return run


def _backward(strategy: Strategy) -> Callable[[torch.Tensor], None]:
    """Without a detour where the strategy adds nothing."""
    same = type(strategy).backward is Strategy.backward
    function: Callable[[torch.Tensor], None] = torch.Tensor.backward if same else strategy.backward
    return function


def _stepper(strategy: Strategy, optimizer: Any) -> Callable[[], Any]:
    same = type(strategy).step is Strategy.step
    function: Callable[[], Any] = optimizer.step if same else partial(strategy.step, optimizer)
    return function


def full_step(parts: Parts, marks: Marks | None = None) -> Step:
    """With accumulation, clipping, loss scaling, warm-up and the moving average.

    With ``marks`` it also notes what its time goes to, and gives the same numbers as any other step.
    """
    window = Window(parts.accumulate, parts.total_of)
    scaler = parts.precision.scaler

    def run(data: Any, batch_weight: BatchWeight | None) -> bool:
        weight, closes = window.enter(parts.last_batch, parts.batch)
        if parts.accumulate > 1:
            parts.strategy.begin_micro_batch(closes)
        if marks is not None:
            marks.begin()
        loss, metrics = parts.objective(data)
        factor = weight if batch_weight is None else weight * batch_weight.factor
        scaled = loss if factor == 1.0 else loss * factor
        scaled = scaled if scaler is None else scaler.scale(scaled)
        if marks is not None:
            marks.end("forward")
            scaled = marks.watched(scaled)
        parts.strategy.backward(scaled)
        if marks is not None:
            marks.end_backward()
        count = parts.count(data, batch_weight)
        parts.meter.add(parts.keep_loss(loss), metrics, count)
        if closes:
            apply_gradients(parts, parts.optimizers, window.correction())
            close_step(parts)
            if marks is not None:
                marks.end("optimizer")
                marks.close()
        return closes

    return run


def apply_gradients(parts: Parts, optimizers: Sequence[Any], correction: float = 1.0) -> None:
    """From gradients to new weights: unscale, clip, step, zero. `close_step` comes once after it."""
    scaler = parts.precision.scaler
    parameters: list[Any] = []
    if correction != 1.0 or parts.clip_norm is not None or parts.clip_value is not None:
        parameters = [p for o in optimizers for group in o.param_groups for p in group["params"]]
    if scaler is not None and (parts.clip_norm or parts.clip_value or parts.before_step):
        for optimizer in optimizers:
            scaler.unscale_(optimizer)
    if correction != 1.0:
        parts.strategy.scale_gradients(parameters, correction)
    if parts.before_step is not None:
        parts.before_step()
    if parts.clip_value is not None:
        nn.utils.clip_grad_value_(parameters, parts.clip_value)
    if parts.clip_norm is not None:
        parts.grad_norm = parts.strategy.clip_norm(parameters, parts.clip_norm)

    def step() -> None:
        for optimizer in optimizers:
            if scaler is None:
                parts.strategy.step(optimizer)
            else:
                scaler.step(optimizer)

    if parts.warmup is None:
        step()
    else:
        parts.warmup.around(parts.steps_done, step)
    for optimizer in optimizers:
        optimizer.zero_grad()


def close_step(parts: Parts, *, scales: bool = True) -> None:
    """Once per step, however many optimizers it had: loss scale, average, schedulers, the count.

    ``scales``: gradients were applied, so the loss scaler may adapt.
    """
    if parts.precision.scaler is not None and scales:
        parts.precision.scaler.update()
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
        self._first = 0
        self._number = -1
        self._inside = size
        self._closes = self._exact = True

    def enter(self, last: bool, number: int) -> tuple[float, bool]:
        """The weight of batch ``number`` of this epoch, and whether it closes the window.

        Entered a second time, as after a failed compilation, a batch keeps its place.
        """
        if self._size == 1:
            return 1.0, True
        if number != self._number and (self._closes or number == 0):
            self._first = number
        self._number = number
        self._inside = number - self._first + 1
        totals = [self._total_of(self._first + place) for place in range(self._size)]
        known = [total for total in totals if total]
        own = totals[self._inside - 1]
        self._closes = last or self._inside == self._size
        # Without totals every batch weighs the same; correction() puts a short window right.
        self._exact = bool(own and totals[0])
        return (own / sum(known) if own and totals[0] else 1 / self._size), self._closes

    def correction(self) -> float:
        """What the summed gradients of a window that was cut short are multiplied by."""
        return 1.0 if self._exact or self._size == 1 else self._size / self._inside


def with_last(
    batches: Iterator[tuple[Any, BatchWeight | None]], ahead: bool
) -> Iterator[tuple[Any, BatchWeight | None, bool]]:
    """Each batch with whether it is the epoch's last; ``ahead`` fetches one more to know it."""
    if not ahead:
        for data, batch_weight in batches:
            yield data, batch_weight, False
        return
    held = next(batches, None)
    while held is not None:
        following = next(batches, None)
        yield held[0], held[1], following is None
        held = following
