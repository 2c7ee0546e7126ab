"""From a window of steps to metrics in files: reduced at one log step, written at the next.

Also ``attempts/N/steps.jsonl``: the step times of every rank, window by window, written by rank 0.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from math import isnan
from pathlib import Path
from typing import Any

from allranks.train.context import TrainContext
from allranks.train.loggers.line_file import LineFile
from allranks.train.monitoring.profiled_steps import StepSampler
from allranks.train.monitoring.step_time import OWN, SHARED, StepClock, StepTimes
from allranks.train.step.metric_accumulator import DeferredScalar, MetricSums, ReducedMetrics
from allranks.train.step.phase_timer import PHASES, PhaseTimer
from allranks.train.trainer_run import fit_number, present_attempt

FILE_NAME = "steps.jsonl"
MIN_SECONDS = 0.25
"""Between two lines."""
BYTES_PER_SECOND = 4096


class MetricsRecorder:
    """Turns accumulated losses into training metrics, late enough that no step waits for the device."""

    def __init__(self, context: TrainContext) -> None:
        self._context = context
        timer = PhaseTimer(context.device, waits_for_ranks=context.world.size > 1)
        self.clock = StepClock(context.device, timer)
        self.sampler = StepSampler(context, timer)
        self._pending: tuple[ReducedMetrics, dict[str, Any]] | None = None
        self._warned = False
        self._step = 0
        self._file: StepTimesFile | None = None
        self._opened = False

    def begin(self, step: int) -> None:
        """Start the clock before the first step."""
        self._step = step
        self.clock.begin(step)

    def begin_epoch(self, *, resumed: bool) -> None:
        """Forget the sums of the last epoch; a resumed epoch continues with its own."""
        if not resumed:
            self._context.epoch_sums = MetricSums()

    def record(self, *, final: bool = False) -> None:
        """Start the reduction of this window's metrics, and write those of the window before.

        ``final`` reads them at once: at the end of an epoch.
        """
        self.settle()  # first: when a GPU has finished the window before, the clock knows its time
        context, state = self._context, self._context.state
        about: dict[str, Any] = {"step": state.step, "epoch": state.epoch, **self._learning_rates()}
        if context.step_context.grad_norm is not None:
            about["grad_norm"] = DeferredScalar(context.step_context.grad_norm)
        times = self._step_times(state.step, wait=final)
        about["steps"] = times.steps
        self._pending = (context.accumulator.flush(times.shared, times.own), about)
        if final or context.device.type == "cpu":  # nothing to wait for
            self.settle()

    def _step_times(self, step: int, *, wait: bool) -> StepTimes:
        """Return what this rank's steps took since the last time."""
        steps, self._step = step - self._step, step
        if not steps:
            return StepTimes()
        times = self.clock.window(step, wait=wait)
        times.facts = {"samples": self._context.accumulator.samples / steps, **self.sampler.facts()}
        return times

    def flush(self) -> None:
        """Write what waits: no step follows for a while, and somebody may read the files meanwhile."""
        self.settle()
        self._context.loggers.flush()
        if self._file is not None:
            self._file.flush()

    def settle(self) -> None:
        """Read the metrics that are being reduced and give them to the loggers."""
        if self._pending is None:
            return
        reduced, about = self._pending
        self._pending = None
        means = reduced.means()
        if not means:
            return
        self._context.epoch_sums.add(reduced)
        step, epoch, steps = (about.pop(name) for name in ("step", "epoch", "steps"))
        values = {f"train_{name}": value for name, value in means.items()}
        values |= {name: float(value) for name, value in about.items()}
        if steps:
            values |= self._throughput(reduced)
            self._write_step_times(reduced, step, epoch, steps)
        self._check_finite(values["train_loss"], step)
        self._context.state.values["loss"] = values["train_loss"]
        self._context.write_metrics(values, kind="train", step=step, epoch=epoch)

    def close(self) -> None:
        """Write what waits; not collective."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _throughput(self, reduced: ReducedMetrics) -> dict[str, float]:
        """Return how fast the window was and what its time went to, over all ranks."""
        found = throughput(reduced.shared(), self._context.world.size)
        self.sampler.step_seconds = found.get("step_seconds", self.sampler.step_seconds)
        return found

    def _write_step_times(self, reduced: ReducedMetrics, step: int, epoch: int, steps: int) -> None:
        """Rank 0 writes down what each rank's steps took."""
        context = self._context
        if not context.world.is_main or not self.clock.is_on:
            return
        if not self._opened:
            self._opened = True
            if (folder := present_attempt(context.folder)) is not None:
                number, ranks = fit_number(context.folder), context.world.size
                self._file = StepTimesFile(folder, ranks, context.say, fit=number)
        if self._file is not None:
            self._file.add(step, epoch, steps, reduced.per_rank())

    def _check_finite(self, loss: float, step: int) -> None:
        if loss - loss == 0 or self._warned:
            return
        self._warned = True
        self._context.say(
            f"WARNING: the loss is {loss} at step {step} or up to {self._context.config.log_every} steps "
            "before. Lower the learning rate, clip gradients (clip_norm=1.0), or check the data."
        )

    def _learning_rates(self) -> dict[str, float]:
        """Return ``lr``, or ``lr_<name>`` with several optimizers."""
        steps = self._context.step_context
        factor = steps.warmup.factor(steps.steps_done) if steps.warmup is not None else 1.0
        if len(steps.optimizers) == 1:
            return {"lr": float(steps.optimizers[0].param_groups[0]["lr"]) * factor}
        pairs = zip(steps.names, steps.optimizers, strict=True)
        return {f"lr_{name}": float(o.param_groups[0]["lr"]) * factor for name, o in pairs}


def throughput(shared: Sequence[float], ranks: int) -> dict[str, float]:
    """Turn the ranks' sums into the keys of a ``train`` line; what not all ranks know is left out."""
    pairs = zip(SHARED, shared, strict=True)
    mean = {name: total / ranks for name, total in pairs if not isnan(total)}
    if not mean.get("step"):
        return {}
    found = _rates(mean, ranks) | _seconds(mean)
    # More digits than a clock can measure only make files long.
    return {name: float(f"{value:.5g}") for name, value in found.items()}


def _seconds(mean: dict[str, float]) -> dict[str, float]:
    """Return what a step's time went to; the phases add up to the step."""
    if "data" not in mean:
        return {"step_seconds": mean["step"]}
    names = [name for name in ("data", *PHASES, "checkpoint") if name in mean]
    other = max(mean["step"] - sum(mean[name] for name in names), 0.0)
    phases = {f"{name}_seconds": mean[name] for name in names}
    return {"step_seconds": mean["step"], **phases, "other_seconds": other}


def _rates(mean: dict[str, float], ranks: int) -> dict[str, float]:
    """Return the throughput of all ranks together."""
    speed = ranks * mean.get("samples", 0.0) / mean["step"]
    flops = speed * mean.get("flops", 0.0)
    found = {
        "samples_per_second": speed,
        "tokens_per_second": speed * mean.get("tokens", 0.0),
        "flops_per_second": flops,
        "mfu": flops / (ranks * mean["peak"]) if "peak" in mean else 0.0,
    }
    return {name: value for name, value in found.items() if value}


class StepTimesFile:
    """``steps.jsonl`` of one attempt. A disk that refuses it costs the file, not the training.

    Short windows, and long lines of many ranks, are averaged, so that the file grows by a few KiB a
    second at most.
    """

    def __init__(
        self, folder: Path, ranks: int, warn: Callable[[str], None], *, fit: int = 1
    ) -> None:
        """``fit``: which one of the script, when it has several."""
        self._out = LineFile(folder / FILE_NAME)
        self._ranks, self._warn, self._fit = ranks, warn, fit
        self._warned = False
        self._next = 0.0
        self._reset()

    def _reset(self) -> None:
        self._sums = [0.0] * (self._ranks * len(OWN))
        self._steps = [0] * (self._ranks * len(OWN))
        self._last: tuple[int, int] | None = None

    def add(self, step: int, epoch: int, steps: int, per_rank: Sequence[float]) -> None:
        """Add a window of ``steps`` steps: the numbers of `OWN`, one rank after the other."""
        for place, seconds in enumerate(per_rank):
            if seconds >= 0:
                self._sums[place] += steps * seconds
                self._steps[place] += steps
        self._last = (step, epoch)
        if time.monotonic() >= self._next:
            self._write()

    def _write(self) -> None:
        if self._last is None:
            return
        line = self._line(*self._last)
        self._reset()
        self._next = time.monotonic() + max(MIN_SECONDS, len(line) / BYTES_PER_SECOND)
        self._try(self._out.add, line)

    def _line(self, step: int, epoch: int) -> str:
        means = [
            float(f"{total / steps:.4g}") if steps else None
            for total, steps in zip(self._sums, self._steps, strict=True)
        ]
        row: dict[str, Any] = {"time": round(time.time(), 3), "step": step, "epoch": epoch}
        row["fit"] = self._fit
        row |= {f"{name}_seconds": means[at :: len(OWN)] for at, name in enumerate(OWN)}
        return json.dumps(row) + "\n"

    def flush(self) -> None:
        """Write what waits."""
        self._try(self._out.flush)

    def close(self) -> None:
        """Write the last window and close the file."""
        self._write()
        self._try(self._out.close)

    def _try(self, call: Callable[..., None], *args: Any) -> None:
        try:
            call(*args)
        except OSError as error:
            if not self._warned:
                self._warned = True
                self._warn(
                    f"The step times of each rank cannot be written to {FILE_NAME}: {error}."
                )
