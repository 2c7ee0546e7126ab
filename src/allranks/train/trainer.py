"""``Trainer``: a model, an optimizer, data and a loss, on one process or many, from the same file.

trainer = Trainer(model, optimizer, TrainConfig(epochs=10), loss_fn="cross_entropy")
model, optimizer = trainer.fit(train_loader, val_loader)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from allranks.errors import UsageError
from allranks.runtime.world.model import World
from allranks.runtime.world.process_group import world
from allranks.train import assembly, stage
from allranks.train.callbacks.base import Callback
from allranks.train.config import TrainConfig
from allranks.train.data import DistributedLoader
from allranks.train.engine import Engine, named_optimizers
from allranks.train.evaluation import evaluate, predict
from allranks.train.gradient_step import optimize_step as default_optimize_step
from allranks.train.loggers.base import Loggers
from allranks.train.loop import Fit, Loop
from allranks.train.meter import Late
from allranks.train.objective import Compute, Metric, explained, make_compute, takes_step
from allranks.train.refusals import check_kinds
from allranks.train.special_steps import is_gradient_free
from allranks.train.state import State
from allranks.train.study import shorten_for_study

if TYPE_CHECKING:
    from allranks.train.progress import Progress
    from allranks.train.saving import Saving


class Trainer(Callback):
    """Trains, validates, tests and predicts. A subclass may override any callback's method."""

    _use_grad: ClassVar[bool] = True

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any = None,
        config: TrainConfig | None = None,
        loss_fn: str | Callable[..., Any] | None = "mse",
        train_dataloader: Any = None,
        val_dataloader: Any = None,
        test_dataloader: Any = None,
        optimize_step: Callable[..., Any] = default_optimize_step,
        *,
        scheduler: Any = None,
        training_step: Callable[..., Any] | None = None,
        validation_step: Callable[..., Any] | None = None,
        predict_step: Callable[[nn.Module, Any], Any] | None = None,
        metrics: Mapping[str, Metric] | None = None,
        callbacks: Sequence[Callback] = (),
        max_batches: int | None = None,
    ) -> None:
        """Nothing is started, moved or wrapped before `fit`, `validate`, `test` or `predict`.

        ``loss_fn`` is a name, a criterion, a function of (model, batch), or None for a model that
        returns its loss. ``optimizer`` is one, or a list or dict of them for a ``training_step``
        with a parameter called ``step``. ``max_batches`` limits every pass over data that is not
        training.
        """
        self.config = config = TrainConfig() if config is None else config
        check_kinds(model, config)
        self.model, self.optimizer, self.loss_fn = model, optimizer, loss_fn
        self.train_dataloader, self.val_dataloader = train_dataloader, val_dataloader
        self.test_dataloader = test_dataloader
        self.optimize_step = optimize_step
        self.scheduler = scheduler
        self.own_step = training_step or getattr(self, "training_step", None)
        self.validation_step, self.predict_step = validation_step, predict_step
        self.callbacks = [*config.callbacks, *callbacks]
        self.max_batches = max_batches
        self.metrics: dict[str, float] = {}
        """The latest value of everything that was measured, the same on all ranks."""
        self.state = State()
        self.batch: Any = None
        """The batch under way; only set when a callback listens to batches or steps."""
        self.folder: Path = Path()
        """The run folder, from the first `fit`, `test` … on."""
        self.stop_reason = ""
        self._compute = self._make_compute(metrics)
        self._engine: Engine | None = None
        self._sink = Loggers([])
        self._bar: Progress | None = None
        self._extras: dict[str, Any] = {}
        self._stop_agreed = False
        self._loop: Loop | None = None
        self._saving: Saving | None = None
        self._resumed_sums: dict[str, tuple[float, float]] = {}
        shorten_for_study(self)

    # -- what users call

    def fit(self, train_dataloader: Any = None, val_dataloader: Any = None) -> tuple[Any, Any]:
        """Train; returns the model and the optimizer, trained in place."""
        train = train_dataloader if train_dataloader is not None else self.train_dataloader
        val = val_dataloader if val_dataloader is not None else self.val_dataloader
        if train is None:
            raise UsageError("There is no training data: trainer.fit(dataloader).")
        self.stop_reason, self._stop_agreed = "", False
        with stage.fitting(self, train, val) as loop:
            try:
                if loop is not None:
                    loop.run()
            except TypeError as error:
                raise explained(error, self.loss_fn) from error
        return self.model, self.optimizer

    def validate(self, dataloader: Any = None) -> dict[str, float]:
        """Loss and metrics of the validation data, over all ranks."""
        return self._pass(dataloader, self.val_dataloader, "val")

    def test(self, dataloader: Any = None) -> dict[str, float]:
        """Loss and metrics of the test data, over all ranks; each sample counts once."""
        return self._pass(dataloader, self.test_dataloader, "test")

    def predict(self, dataloader: Any) -> Any:
        """The outputs for every sample, in the dataset's order, on the CPU of every rank."""
        engine = self.engine()
        data = engine.distribute(dataloader, training=False)
        try:
            return predict(engine, data, self.predict_step)
        finally:
            data.close()

    def stop(self, reason: str = "asked to") -> None:
        """End training after the present step; several ranks agree on one about two seconds later."""
        self.stop_reason = self.stop_reason or reason
        if self._loop is not None:
            self._loop.hurry()

    def log(self, name: str, value: Any) -> None:
        """Write a number beside the metrics, at the next log step. Tensors are read late."""
        if isinstance(value, torch.Tensor):
            self._extras[name] = Late(value)
        else:
            self._extras[name] = self.metrics[name] = float(value)

    def say(self, text: str) -> None:
        """Print on rank 0 only, without breaking the progress bar."""
        if not self.world.is_main:
            return
        if self._bar is not None:
            self._bar.say(text)
        else:
            print(text, flush=True)

    def save_checkpoint(self, name: str | None = None) -> Path | None:
        """Save everything that `resume` needs; all ranks must call it.

        During `fit` it is made when the present step or epoch is whole and all its hooks are done, and
        written while training goes on. ``name`` is a link to it, and what is named stays; without one
        it is a periodic checkpoint, left out while the one before is still being written. On rank 0 it
        returns the path: the link, or after `fit` the folder of the step.
        """
        if self._saving is None:
            raise UsageError("save_checkpoint works during and after fit().")
        return self._saving.ask(name)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The model computes with the moving average of its weights (``TrainConfig(ema=…)``)."""
        average = self._loop.fit.parts.average if self._loop is not None else None
        if average is None:
            raise UsageError("There is no average: train with TrainConfig(ema=0.999) first.")
        with average.applied():
            yield

    # -- gradient-free training

    @classmethod
    def set_use_grad(cls, value: bool) -> None:
        """Whether Trainers train by gradients; False is for optimizers that ask and tell."""
        cls._use_grad = bool(value)

    @property
    def use_grad(self) -> bool:
        return self._use_grad

    @contextmanager
    def enable_grad_opt(self, optimizer: Any = None) -> Iterator[None]:
        """Train by gradients inside this block, with this optimizer."""
        with self._using(True, optimizer):
            yield

    @contextmanager
    def disable_grad_opt(self, optimizer: Any = None) -> Iterator[None]:
        """Train without gradients inside this block, with this optimizer (nevergrad)."""
        with self._using(False, optimizer):
            yield

    @contextmanager
    def _using(self, grad: bool, optimizer: Any) -> Iterator[None]:
        before = self.optimizer
        self._use_grad = grad  # type: ignore[misc]
        if optimizer is not None:
            self.optimizer, self._engine = optimizer, None
        try:
            yield
        finally:
            del self._use_grad
            if optimizer is not None:
                self.optimizer, self._engine = before, None

    # -- what callbacks read

    @property
    def epoch(self) -> int:
        """The epoch under way, from 1."""
        return self.state.epoch

    current_epoch = epoch

    @property
    def step(self) -> int:
        """Optimizer steps done."""
        return self.state.step

    global_step = step

    @property
    def world(self) -> World:
        return self._engine.session.world if self._engine is not None else world()

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.engine().session.device

    @property
    def checkpoints(self) -> Path:
        """The folder of the last fit's checkpoints: ``TrainConfig(resume=str(trainer.checkpoints))``."""
        if self._saving is None:
            raise UsageError("trainer.checkpoints is known from fit() on.")
        return self._saving.folder

    @property
    def optimizers(self) -> list[Any]:
        """The torch optimizers, whether one was given, a list or a dict."""
        return list(self._named_optimizers().values())

    @property
    def loggers(self) -> list[Any]:
        """Where metrics go; empty except on rank 0."""
        return list(self._sink)

    @property
    def loss(self) -> torch.Tensor | None:
        """The loss of the last batch on this rank; reading its number waits for the device."""
        return self._loop.fit.meter.last_loss if self._loop is not None else None

    @property
    def monitor(self) -> str:
        """The metric that decides what is best."""
        there = self._loop is not None and self._loop.fit.val_loader is not None
        return self.config.monitor or ("val_loss" if there else "train_loss")

    def engine(self) -> Engine:
        """The model's side, set up at the first use: ranks, device, strategy."""
        if self._engine is None:
            self._engine = assembly.engine_for(self, self._compute)
        return self._engine

    # -- inside

    def _named_optimizers(self) -> dict[str, Any]:
        if self.optimizer is None or self.is_gradient_free:
            return {}
        return named_optimizers(self.optimizer)

    @property
    def is_gradient_free(self) -> bool:
        """Whether `fit` asks and tells instead of computing gradients."""
        asks = is_gradient_free(self.optimizer)
        if self.use_grad and asks:
            raise UsageError(
                f"{type(self.optimizer).__name__} trains without gradients: "
                "call Trainer.set_use_grad(False), or use trainer.disable_grad_opt(optimizer)."
            )
        if not self.use_grad and not asks and self.optimizer is not None:
            raise UsageError(
                f"set_use_grad(False) needs an optimizer that asks and tells (nevergrad); "
                f"{type(self.optimizer).__name__} needs gradients: Trainer.set_use_grad(True)."
            )
        return asks

    def _make_compute(self, metrics: Mapping[str, Metric] | None) -> Compute:
        if takes_step(self.own_step):
            return _no_compute
        return make_compute(self.loss_fn, self.own_step, metrics)

    def _pass(self, given: Any, kept: Any, kind: str) -> dict[str, float]:
        loader = given if given is not None else kept
        if loader is None:
            raise UsageError(f"There is no {kind} data: trainer.{_VERBS[kind]}(dataloader).")
        distributed = self.engine().distribute(loader, training=False)
        with stage.passing(self, kind):
            try:
                values = self._evaluate(distributed, kind)
            finally:
                distributed.close()
            self._write(values, kind=kind)
        return values

    def _evaluate(self, loader: DistributedLoader, kind: str) -> dict[str, float]:
        compute = make_compute(None, self.validation_step) if self.validation_step else None
        if compute is None and self._compute is _no_compute:
            raise UsageError(
                "training_step(model, batch, step) cannot be used to validate: "
                "give validation_step=f, with f(model, batch) -> loss or (loss, metrics)."
            )
        means = evaluate(self.engine(), loader, compute, most=self.max_batches)
        return {f"{kind}_{name}": value for name, value in means.items()}

    def _write(
        self,
        values: Mapping[str, Any],
        *,
        kind: str,
        step: int | None = None,
        epoch: int | None = None,
    ) -> None:
        """Remember the values; on rank 0 hand them to the loggers."""
        extras, self._extras = self._extras, {}
        numbers = {name: float(value) for name, value in {**values, **extras}.items()}
        self.metrics.update(numbers)
        at = self.state.step if step is None else step
        where = self.state.epoch if epoch is None else epoch
        self._sink.log(numbers, step=at, epoch=where, kind=kind)
        if self._loop is not None and self._loop.fit.callbacks.has("log"):
            self._loop.fit.callbacks.fire("log", self, numbers)

    def _settle_metrics(self) -> None:
        """Before a save: numbers that were sent off are read and written down."""
        if self._loop is not None:
            self._loop._recorder.settle()

    def _epoch_sums(self) -> dict[str, tuple[float, float]]:
        return {} if self._loop is None else self._loop._recorder.sums

    def _agree_to_stop(self) -> None:
        """Every rank comes here at the same step."""
        self._stop_agreed = True
        self.stop_reason = self.stop_reason or "another rank asked to"

    def _remake_step(self, fit: Fit) -> None:
        """After compilation changed how losses must be kept."""
        fit.step = assembly.make_step(self, fit.parts)


_VERBS = {"val": "validate", "test": "test"}


def _no_compute(*_: Any) -> Any:
    raise UsageError("training_step(model, batch, step) drives the optimizers itself.")
