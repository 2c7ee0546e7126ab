"""Which steps are measured in detail: a few every second, the same ones on all ranks.

The loop pauses before and after such a step, and another step function runs in between. All other steps
run without any measurement. Also here: the tokens of a batch and the peak of the device, for MFU.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import TYPE_CHECKING, Any

import torch

from allranks.train.context import TrainContext
from allranks.train.data import BatchWeight
from allranks.train.data.batch_transfer import leaves
from allranks.train.step.phase_timer import PhaseTimer
from allranks.train.step.step_functions import Step, full_step

if TYPE_CHECKING:
    from allranks.train.monitoring.flop_counter import FlopMeasurement

SECONDS = {"cpu": 0.05, "cuda": 0.25}
"""Between two measured steps, about, as soon as it is known how long a step takes."""
NEVER = 1 << 62
_SHORT = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float64: "fp64"}


class StepSampler:
    """Replaces the context's step function for the steps to be measured."""

    def __init__(self, context: TrainContext, timer: PhaseTimer) -> None:
        self._context, self._timer, self._config = context, timer, context.config
        self._timed_step: Step | None = None
        self._flops: FlopMeasurement | None = None
        self._seen = [0, 0]
        """Positions and samples of the batches inspected since the last `facts`."""
        self._tokens = float(self._config.tokens_per_sample or 0)
        self._peak = 0.0
        self.step_seconds: float | None = None
        """The mean over all ranks, so that all measure the same steps."""
        self._gap = 2
        self._seconds = SECONDS.get(context.device.type, 0.25)
        self._random = Random(0)
        """The same on all ranks. Random gaps: periodic work must not coincide with the measured steps."""
        self._start = self.next = NEVER
        self._replaced: tuple[Step, Step] | None = None
        """The step function in place, and the one that it replaces."""

    def begin(self, step: int, *, standard: bool) -> None:
        """Start before the first step, which is never like the others.

        ``standard``: forward, backward and step are ours; only then can phases be measured.
        """
        self._peak = device_peak(self._context)
        if standard:
            self._timed_step = full_step(self._context.step_context, self._timer)
            self._flops = _flop_measurement(self._context, self._timer, self._peak)
        if standard or self._counts_tokens:
            self._start = self.next = step + (2 if self._flops is None else 1)

    @property
    def _counts_tokens(self) -> bool:
        return self._config.tokens_per_sample is None

    def facts(self) -> dict[str, float]:
        """Return ``tokens`` and ``flops`` per sample and ``peak`` of the device, where they are known."""
        there, samples = self._seen
        if samples:
            self._tokens, self._seen = there / samples, [0, 0]
        flops = float(self._config.flops_per_sample or 0.0)
        if self._flops is not None:
            flops = self._flops.per_sample
        facts = {"tokens": self._tokens, "flops": flops, "peak": self._peak}
        return {name: value for name, value in facts.items() if value}

    def update(self, step: int) -> None:
        """Restore the step function after a measured step, and replace it when the next one is due."""
        if self._replaced is not None:
            self._restore()
            self._plan(step)
        if step >= self._start:
            self._replace()
            self.next = step + 1
        else:
            self.next = self._start

    def _plan(self, step: int) -> None:
        if self.step_seconds:
            seconds = self._seconds * self._random.uniform(0.5, 1.5)
            self._start = step + max(round(seconds / self.step_seconds), 1) - 1
        else:
            self._start = step + self._gap
            self._gap *= 2

    def _replace(self) -> None:
        context = self._context
        step = self._counting_tokens(self._timed_step or context.step)
        if self._flops is not None and self._flops.is_wanted:
            step = self._flops.around(step)
        self._replaced = (step, context.step)
        context.step = step

    def _restore(self) -> None:
        assert self._replaced is not None
        step, before = self._replaced
        self._replaced = None
        if self._context.step is step:
            self._context.step = before
        else:  # compiling has made another one
            self._timer.discard()
        if self._flops is not None and self._flops.has_run:
            self._flops.has_run = False
            self._timer.discard()  # counting slows a step down

    def _counting_tokens(self, step: Step) -> Step:
        if not self._counts_tokens:
            return step

        def run(data: Any, batch_weight: BatchWeight | None) -> bool:
            there, samples = count_positions(data)
            self._seen[0] += there
            self._seen[1] += samples
            return step(data, batch_weight)

        return run


def _flop_measurement(
    context: TrainContext, timer: PhaseTimer, peak: float
) -> FlopMeasurement | None:
    """Count the operations of a sample, unless the user gave them or MFU cannot be computed anyway."""
    if context.config.flops_per_sample is not None or not peak:
        return None
    from allranks.train.monitoring.flop_counter import FlopMeasurement, can_count

    return FlopMeasurement(timer) if can_count(context) else None


def count_positions(batch: Any) -> tuple[int, int]:
    """Return positions, padding included, and samples of a batch of sequences; zeros for other data.

    A dict's ``input_ids``, or a first tensor of integers with two dimensions.
    """
    if isinstance(batch, Mapping):
        first = batch.get("input_ids")
    else:
        first = next((leaf for leaf in leaves(batch) if isinstance(leaf, torch.Tensor)), None)
    if not isinstance(first, torch.Tensor) or first.ndim != 2:
        return 0, 0
    whole = not (first.is_floating_point() or first.is_complex() or first.dtype == torch.bool)
    return (first.numel(), len(first)) if whole else (0, 0)


def device_peak(context: TrainContext) -> float:
    """Return the peak FLOP/s of this rank's device; 0 when unknown."""
    if context.config.peak_flops is not None:
        return context.config.peak_flops
    if context.device.type != "cuda":
        return 0.0
    from allranks.runtime.telemetry.peak_flops import peak_flops

    name = torch.cuda.get_device_name(context.device)
    return peak_flops(name, _arithmetic(context)) or 0.0


def _arithmetic(context: TrainContext) -> str:
    """Return the type in which matrix products are computed."""
    chosen = str(context.engine.strategy.options.precision)
    if chosen not in ("fp32", "tf32"):
        return chosen
    first = next((p for p in context.engine.model.parameters() if p.is_floating_point()), None)
    if first is not None and first.dtype in _SHORT:
        return _SHORT[first.dtype]
    return "fp32" if torch.get_float32_matmul_precision() == "highest" else "tf32"
