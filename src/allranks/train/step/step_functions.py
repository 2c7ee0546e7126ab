"""One batch → gradients → an optimizer step. The hot path: one closure per kind of step.

plain      forward, backward, step: no accumulation, clipping, loss scaling or weight averaging
full       all of those

Each is called with ``(batch, weight)`` and returns whether an optimizer step was made. Steps driven by the
user's code or by the optimizer are in `custom_steps`.
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
from allranks.train.step.loss_module import direct_call
from allranks.train.step.metric_accumulator import MetricAccumulator
from allranks.train.step.optimizer_settings import Precision, Warmup, WeightAverage, scheduler_list
from allranks.train.strategies.base import Strategy

if TYPE_CHECKING:
    from allranks.train.step.phase_timer import PhaseTimer

Step = Callable[[Any, "BatchWeight | None"], bool]


@dataclass
class StepContext:
    """What a training step works with."""

    objective: nn.Module
    """What is called in training: wrapped by the strategy, possibly compiled."""
    model: nn.Module
    strategy: Strategy
    optimizers: Sequence[Any]
    names: Sequence[str]
    """The optimizers' names if the user gave a dict, else their positions."""
    accumulator: MetricAccumulator
    precision: Precision
    batch_size: int | None
    total_of: Callable[[int], int | None]
    """Samples of a global batch of this epoch, by batch number."""
    rank: int = 0
    size: int = 1
    accumulate: int = 1
    clip_norm: float | None = None
    clip_value: float | None = None
    scheduler: Any = None
    scheduler_per_step: bool = True
    warmup: Warmup | None = None
    average: WeightAverage | None = None
    before_step: Callable[[], None] | None = None
    last_batch: bool = False
    """Whether this is the last batch of the epoch, which closes a short accumulation window. Set by the loop."""
    batch: int = 0
    """The number of the current batch in its epoch, when several batches make a step. Set by the loop."""
    steps_done: int = 0
    grad_norm: torch.Tensor | None = None
    detach_loss: Callable[[torch.Tensor], Any] = torch.Tensor.detach
    """On a GPU detaches; with CUDA graphs also clones, since the next replay overwrites the loss. On
    a CPU reads the number: a tensor kept alive would fragment the heap and slow the next step."""

    @property
    def parameters(self) -> list[torch.Tensor]:
        return [p for o in self.optimizers for group in o.param_groups for p in group["params"]]

    def count(self, data: Any, batch_weight: BatchWeight | None) -> int:
        """Return how many samples of this rank the batch counts for."""
        return (
            batch_weight.count
            if batch_weight is not None
            else self.batch_size or count_samples(data)
        )

    @property
    def is_plain(self) -> bool:
        """Whether forward, backward and step are all there is to do."""
        simple = self.accumulate == 1 and self.clip_norm is None and self.clip_value is None
        bare = self.precision.scaler is None and self.warmup is None and self.average is None
        return simple and bare and self.before_step is None and len(self.optimizers) == 1


def plain_step(context: StepContext) -> Step:
    """Make the step without any option: forward, backward, optimizer."""
    add, keep, full = context.accumulator.add, context.detach_loss, context.batch_size
    objective = direct_call(context.objective)
    backward, optimizer = _backward(context.strategy), context.optimizers[0]
    step, zero = _stepper(context.strategy, optimizer), optimizer.zero_grad
    schedulers = scheduler_list(context.scheduler) if context.scheduler_per_step else []

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
    """Call torch directly when the strategy adds nothing."""
    same = type(strategy).backward is Strategy.backward
    function: Callable[[torch.Tensor], None] = torch.Tensor.backward if same else strategy.backward
    return function


def _stepper(strategy: Strategy, optimizer: Any) -> Callable[[], Any]:
    same = type(strategy).step is Strategy.step
    function: Callable[[], Any] = optimizer.step if same else partial(strategy.step, optimizer)
    return function


def full_step(context: StepContext, timer: PhaseTimer | None = None) -> Step:
    """Make the step with accumulation, clipping, loss scaling, warm-up and weight averaging.

    With a ``timer`` it also measures its phases; the results are the same to the bit.
    """
    window = AccumulationWindow(context.accumulate, context.total_of)
    scaler = context.precision.scaler

    def run(data: Any, batch_weight: BatchWeight | None) -> bool:
        weight, closes = window.weigh(context.last_batch, context.batch)
        if context.accumulate > 1:
            context.strategy.begin_micro_batch(closes)
        if timer is not None:
            timer.begin()
        loss, metrics = context.objective(data)
        factor = weight if batch_weight is None else weight * batch_weight.factor
        scaled = loss if factor == 1.0 else loss * factor
        scaled = scaled if scaler is None else scaler.scale(scaled)
        if timer is not None:
            timer.end("forward")
            scaled = timer.hook_backward(scaled)
        context.strategy.backward(scaled)
        if timer is not None:
            timer.end_backward()
        count = context.count(data, batch_weight)
        context.accumulator.add(context.detach_loss(loss), metrics, count)
        if closes:
            apply_gradients(context, context.optimizers, window.correction())
            finish_step(context)
            if timer is not None:
                timer.end("optimizer")
                timer.end_step()
        return closes

    return run


def apply_gradients(
    context: StepContext, optimizers: Sequence[Any], correction: float = 1.0
) -> None:
    """Turn gradients into new weights: unscale, clip, step, zero. Call `finish_step` once afterwards."""
    scaler = context.precision.scaler
    parameters: list[Any] = []
    if correction != 1.0 or context.clip_norm is not None or context.clip_value is not None:
        parameters = [p for o in optimizers for group in o.param_groups for p in group["params"]]
    if scaler is not None and (context.clip_norm or context.clip_value or context.before_step):
        for optimizer in optimizers:
            scaler.unscale_(optimizer)
    if correction != 1.0:
        context.strategy.scale_gradients(parameters, correction)
    if context.before_step is not None:
        context.before_step()
    if context.clip_value is not None:
        nn.utils.clip_grad_value_(parameters, context.clip_value)
    if context.clip_norm is not None:
        context.grad_norm = context.strategy.clip_norm(parameters, context.clip_norm)

    def step() -> None:
        for optimizer in optimizers:
            if scaler is None:
                context.strategy.step(optimizer)
            else:
                scaler.step(optimizer)

    if context.warmup is None:
        step()
    else:
        context.warmup.step_with_warmup(context.steps_done, step)
    for optimizer in optimizers:
        optimizer.zero_grad()


def finish_step(context: StepContext, *, scales: bool = True) -> None:
    """Update loss scale, weight average and schedulers, once per step whatever the number of optimizers.

    ``scales``: gradients were applied, so the loss scaler may adapt.
    """
    if context.precision.scaler is not None and scales:
        context.precision.scaler.update()
    if context.average is not None:
        context.average.update()
    if context.scheduler_per_step:
        for scheduler in scheduler_list(context.scheduler):
            scheduler.step()
    context.steps_done += 1


class AccumulationWindow:
    """Accumulation: the batches of one optimizer step, each weighted by its number of samples."""

    def __init__(self, size: int, total_of: Callable[[int], int | None]) -> None:
        self._size = size
        self._total_of = total_of
        self._first = 0
        self._number = -1
        self._inside = size
        self._closes = self._exact = True

    def weigh(self, last: bool, number: int) -> tuple[float, bool]:
        """Return the weight of batch ``number`` of this epoch, and whether it closes the window.

        A batch that is repeated, as after a failed compilation, keeps its place.
        """
        if self._size == 1:
            return 1.0, True
        if number != self._number and (self._closes or number == 0):
            self._first = number
        self._number = number
        self._inside = number - self._first + 1
        totals = [self._total_of(self._first + place) for place in range(self._size)]
        known = [total for total in totals if total]
        samples = totals[self._inside - 1]
        self._closes = last or self._inside == self._size
        # Without totals every batch weighs the same; correction() rescales a short window.
        self._exact = bool(samples and totals[0])
        return (samples / sum(known) if samples and totals[0] else 1 / self._size), self._closes

    def correction(self) -> float:
        """Return the factor for the summed gradients of a window that was cut short."""
        return 1.0 if self._exact or self._size == 1 else self._size / self._inside


def flag_last_batch(
    batches: Iterator[tuple[Any, BatchWeight | None]], ahead: bool
) -> Iterator[tuple[Any, BatchWeight | None, bool]]:
    """Yield each batch with whether it is the epoch's last; ``ahead`` fetches one more to know."""
    if not ahead:
        for data, batch_weight in batches:
            yield data, batch_weight, False
        return
    held = next(batches, None)
    while held is not None:
        following = next(batches, None)
        yield held[0], held[1], following is None
        held = following
