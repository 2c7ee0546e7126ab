"""What the parts of a training share. The Trainer makes one context and passes it down.

Loop, checkpoints, metrics and output work on the context and never see the Trainer; callbacks see its
public side, `TrainerView`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from allranks.runtime.world.communicator import Communicator, get_communicator
from allranks.runtime.world.model import World
from allranks.runtime.world.process_group import world
from allranks.train.callbacks.base import Callback, Callbacks, TrainerView
from allranks.train.config import TrainConfig
from allranks.train.data import DistributedLoader
from allranks.train.loggers.base import Loggers
from allranks.train.model_setup import TrainEngine
from allranks.train.step.compilation import Compiler
from allranks.train.step.custom_steps import GradientFreeSearch
from allranks.train.step.loss_module import Compute
from allranks.train.step.metric_accumulator import MetricAccumulator, MetricSums
from allranks.train.step.step_functions import Step, StepContext


@dataclass
class TrainingState:
    """How far the training is. Only the loop and a resumption change it."""

    epoch: int = 0
    """The current epoch, from 1; 0 before the first."""
    step: int = 0
    """Optimizer steps done."""
    batch: int = 0
    """Batches of this epoch done on each rank."""
    epochs: int | None = None
    total_steps: int | None = None
    values: dict[str, float] = field(default_factory=dict)
    """What the progress bar shows."""
    started: float = field(default_factory=time.perf_counter)
    epoch_end: str = "done"
    """How far the end of the epoch has come: "" in its batches, "written" (its metrics), "validated",
    "done", or "stopped" where the training ended before the epoch did; "validating" where a validation
    between its batches was interrupted."""
    phase: str = "train"
    device: torch.device | None = None
    next_due: int = 0
    """The step after which the loop leaves the hot path: to log, validate, save or stop."""
    samples_per_step: int = 0
    """Samples of a full step over all ranks; 0 when unknown."""
    first_step: int = 0
    """The step at which this process started: not 0 after a resumption."""
    samples_before: int = 0
    """Samples seen before a resumption, possibly with another batch size."""
    seconds_before: float = 0.0
    """Training time before a resumption."""

    @property
    def samples(self) -> int:
        """Samples seen by this training, over all ranks."""
        return self.samples_before + (self.step - self.first_step) * self.samples_per_step

    @property
    def seconds(self) -> float:
        """Training time, over all attempts."""
        return self.seconds_before + time.perf_counter() - self.started


@dataclass(frozen=True)
class TrainTask:
    """What to train: the user's objects, as they were given to the Trainer."""

    model: nn.Module
    optimizer: Any
    """One optimizer, or a list or dict of them."""
    optimizers: Mapping[str, Any]
    """The torch optimizers by name; empty in gradient-free training."""
    loss_fn: Any
    compute: Compute
    """Loss and metrics of a batch, from ``loss_fn`` or ``training_step``."""
    optimize_step: Callable[..., Any] | None
    """The user's own replacement of the whole step."""
    manual_step: Callable[..., Any] | None
    """The user's ``training_step(model, batch, step)``, which drives the optimizers itself."""
    validation_step: Callable[..., Any] | None
    scheduler: Any
    callbacks: Sequence[Callback]
    gradient_free: bool

    @property
    def calls_model(self) -> bool:
        """Whether the user's own code calls the model, so that the strategy wraps the model itself."""
        return bool(self.optimize_step or self.manual_step or self.gradient_free)


def _print_line(text: str) -> None:
    print(text, flush=True)


@dataclass
class TrainContext:
    """One training: configuration, progress, metrics and output, and what a ``fit`` works with."""

    config: TrainConfig
    view: TrainerView
    """What callbacks are called with."""
    state: TrainingState = field(default_factory=TrainingState)
    metrics: dict[str, float] = field(default_factory=dict)
    """The latest value of everything measured, the same on all ranks."""
    pending_values: dict[str, Any] = field(default_factory=dict)
    """Values that callbacks logged since the last write."""
    batch: Any = None
    """The current batch; only set when a callback listens to batches or steps."""
    folder: Path = Path()
    """The run folder, once the ranks are connected."""
    loggers: Loggers = field(default_factory=Loggers)
    """Where metrics go; empty except on rank 0."""
    print_line: Callable[[str], None] = _print_line
    """Prints above the progress bar while there is one."""
    stop_reason: str = ""
    stop_agreed: bool = False
    """All ranks have agreed to stop at this step."""

    # From the first fit, validate, test or predict on
    task: TrainTask = field(init=False, repr=False)
    engine: TrainEngine = field(init=False, repr=False)
    """Ranks, strategy and objective."""

    # From the first fit on
    loader: DistributedLoader = field(init=False, repr=False)
    val_loader: DistributedLoader | None = field(default=None, init=False, repr=False)
    step_context: StepContext = field(init=False, repr=False)
    step: Step = field(init=False, repr=False)
    """Makes one training step of a batch."""
    accumulator: MetricAccumulator = field(init=False, repr=False)
    epoch_sums: MetricSums = field(default_factory=MetricSums, init=False, repr=False)
    """Losses and metrics of the current epoch so far."""
    callbacks: Callbacks = field(init=False, repr=False)
    compiler: Compiler = field(init=False, repr=False)
    search: GradientFreeSearch | None = field(default=None, init=False, repr=False)
    """Gradient-free training; sets the best parameters after the last step."""
    start_batch: int = 0
    """Batches of the first epoch that were done before a resumption."""

    @property
    def has_engine(self) -> bool:
        """Whether the ranks are connected and the model is set up."""
        return hasattr(self, "engine")

    @property
    def has_fit(self) -> bool:
        """Whether a fit was set up."""
        return hasattr(self, "step_context")

    @property
    def world(self) -> World:
        """This rank and its peers."""
        return self.engine.session.world if self.has_engine else world()

    @property
    def communicator(self) -> Communicator:
        """Small collectives between the ranks."""
        return get_communicator(self.world.size)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.engine.session.device

    @property
    def monitor(self) -> str:
        """The metric that decides which checkpoint is the best."""
        return self.config.monitor or ("train_loss" if self.val_loader is None else "val_loss")

    def total_steps(self) -> int | None:
        """Return the steps of the whole training, where that can be known.

        Steps before a resumption count as they were, the others with the current batch size.
        """
        state, loader, config = self.state, self.loader, self.config
        known = [config.max_steps] if config.max_steps is not None else []
        if loader.batches is not None and config.last_epoch is not None:
            is_inside = state.epoch_end != "done"
            left = (loader.batches_of(state.epoch) or 0) - self.start_batch if is_inside else 0
            epochs = max(0, config.last_epoch - state.epoch)
            per_epoch = math.ceil(loader.batches / config.accumulate)
            known.append(state.step + math.ceil(left / config.accumulate) + epochs * per_epoch)
        return min(known, default=None)

    def mean_over_ranks(self, value: float) -> float:
        """Return the mean of every rank's number; collective."""
        return self.communicator.sum([value])[0] / self.world.size

    def say(self, text: str) -> None:
        """Print on rank 0 only, without breaking the progress bar."""
        if self.world.is_main:
            self.print_line(text)

    def fire(self, event: str, *args: Any) -> None:
        """Call the callbacks' hooks of this event."""
        self.callbacks.fire(event, self.view, *args)

    def write_metrics(
        self,
        values: Mapping[str, Any],
        *,
        kind: str,
        step: int | None = None,
        epoch: int | None = None,
    ) -> None:
        """Update the metrics and hand them to the loggers, with what callbacks logged meanwhile."""
        pending, self.pending_values = self.pending_values, {}
        numbers = {name: float(value) for name, value in {**values, **pending}.items()}
        self.metrics.update(numbers)
        at = self.state.step if step is None else step
        where = self.state.epoch if epoch is None else epoch
        self.loggers.log(numbers, step=at, epoch=where, kind=kind)
        if self.has_fit and self.callbacks.has("log"):
            self.fire("log", numbers)

    def request_stop(self, reason: str) -> None:
        """Ask for the end of the training; several ranks agree on a step about two seconds later."""
        self.stop_reason = self.stop_reason or reason
        if self.world.size == 1:
            self.state.next_due = 0

    def agree_to_stop(self) -> None:
        """Stop at this step; every rank calls it at the same one."""
        self.stop_agreed = True
        self.stop_reason = self.stop_reason or "another rank asked to stop"
