"""``Trainer``: a model, an optimizer, a loss and data, on one process or many, from the same script.

trainer = Trainer(model, optimizer, TrainConfig(epochs=10), loss_fn="cross_entropy")
model, optimizer = trainer.fit(train_loader, val_loader)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from allranks.errors import UsageError
from allranks.runtime.world.model import World
from allranks.train.argument_checks import check_kinds
from allranks.train.callbacks.base import Callback
from allranks.train.config import TrainConfig
from allranks.train.context import TrainContext, TrainTask
from allranks.train.loop.evaluation import evaluate, predict
from allranks.train.loop.fit import Fit, logged_pass
from allranks.train.loop.fit_setup import build_engine
from allranks.train.model_setup import named_optimizers
from allranks.train.scaling_mode import in_study, study_config
from allranks.train.step.custom_steps import is_gradient_free
from allranks.train.step.custom_steps import optimize_step as default_optimize_step
from allranks.train.step.loss_module import Compute, Metric, drives_optimizers, make_compute
from allranks.train.step.metric_accumulator import DeferredScalar


class Trainer(Callback):
    """Trains, validates, tests and predicts.

    A subclass may override the hooks of a `Callback`, and define how batches are used:

    ``training_step(self, model, batch)`` returns the loss; with a third parameter ``step`` it drives the
    optimizers itself. ``validation_step(self, model, batch)`` replaces the loss in validation and test,
    ``predict_step(self, model, batch)`` the call of the model in `predict`.
    """

    training_step: Callable[..., Any] | None = None
    validation_step: Callable[..., Any] | None = None
    predict_step: Callable[..., Any] | None = None
    _use_grad: ClassVar[bool] = True

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any = None,
        config: TrainConfig | None = None,
        loss_fn: str | Callable[..., Any] | None = "mse",
        *,
        metrics: Mapping[str, Metric] | None = None,
        scheduler: Any = None,
        callbacks: Sequence[Callback] = (),
        optimize_step: Callable[..., Any] = default_optimize_step,
    ) -> None:
        """Nothing is started, moved or wrapped before `fit`, `validate`, `test` or `predict`.

        ``optimizer`` is one, or a list or dict of them for a ``training_step`` that drives them.
        ``loss_fn`` is a name, a criterion, a function of (model, batch), or None for a model that
        returns its loss. ``metrics`` are functions of (output, target) by name. ``scheduler`` is a
        torch scheduler or a list. ``optimize_step`` replaces the whole step.
        """
        config = TrainConfig() if config is None else config
        check_kinds(model, config)
        self.config = study_config(config)
        self.model, self.optimizer, self.loss_fn = model, optimizer, loss_fn
        self.scheduler = None if in_study() else scheduler
        self.callbacks = list(callbacks)
        self.optimize_step = optimize_step
        self._compute = self._make_compute(metrics)
        self.context = TrainContext(self.config, view=self)
        """What the parts of the training share; not for users."""
        self._fit: Fit | None = None
        self._needs_engine = True

    # -- train and evaluate

    def fit(self, train_dataloader: Any, val_dataloader: Any = None) -> tuple[Any, Any]:
        """Train; return the model and the optimizer, trained in place."""
        if train_dataloader is None:
            raise UsageError("There is no training data: trainer.fit(dataloader).")
        self.context.stop_reason, self.context.stop_agreed = "", False
        context = self._set_up()
        self._fit = Fit(context, train_dataloader, val_dataloader)
        self._fit.run()
        return self.model, self.optimizer

    def validate(self, dataloader: Any) -> dict[str, float]:
        """Return loss and metrics of validation data, over all ranks."""
        return self._evaluate(dataloader, "val")

    def test(self, dataloader: Any) -> dict[str, float]:
        """Return loss and metrics of test data, over all ranks; each sample counts once."""
        return self._evaluate(dataloader, "test")

    def predict(self, dataloader: Any) -> Any:
        """Return the outputs for every sample, in the dataset's order, on the CPU of every rank."""
        engine = self._set_up().engine
        loader = engine.loader(dataloader, training=False)
        try:
            return predict(engine, loader, self.predict_step)
        finally:
            loader.close()

    def save_checkpoint(self, name: str | None = None) -> Path | None:
        """Save everything that `resume` needs; all ranks must call it.

        During `fit` it is saved when the current step or epoch is complete and all its hooks are done, and
        written while training continues. ``name`` is a link to it, and a named checkpoint is never deleted;
        without one it is a periodic checkpoint, skipped while the one before is still being written. On
        rank 0 it returns the path: the link, or after `fit` the folder of the step.
        """
        if self._fit is None:
            raise UsageError("save_checkpoint() works during and after fit().")
        return self._fit.checkpoints.request(name)

    def model_state(self) -> dict[str, Any]:
        """Return the whole model's state dict under its own names, on rank 0; all ranks must call it."""
        return self._set_up().engine.strategy.model_state()

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Let the model compute with the moving average of its weights (``TrainConfig(ema=…)``)."""
        average = self.context.step_context.average if self.context.has_fit else None
        if average is None:
            raise UsageError("There is no average: train with TrainConfig(ema=0.999) first.")
        with average.applied():
            yield

    # -- for callbacks: see TrainerView

    def stop(self, reason: str = "requested") -> None:
        """End training after the current step; several ranks agree on one about two seconds later."""
        self.context.request_stop(reason)

    def log(self, name: str, value: Any) -> None:
        """Write a number beside the metrics, at the next log step. Tensors are read late."""
        if isinstance(value, torch.Tensor):
            self.context.pending_values[name] = DeferredScalar(value)
        else:
            self.context.pending_values[name] = self.context.metrics[name] = float(value)

    def say(self, text: str) -> None:
        """Print on rank 0 only, without breaking the progress bar."""
        self.context.say(text)

    @property
    def epoch(self) -> int:
        """The current epoch, from 1."""
        return self.context.state.epoch

    current_epoch = epoch

    @property
    def step(self) -> int:
        """Optimizer steps done."""
        return self.context.state.step

    global_step = step

    @property
    def metrics(self) -> dict[str, float]:
        """The latest value of everything measured, the same on all ranks."""
        return self.context.metrics

    @property
    def batch(self) -> Any:
        """The current batch; only set when a callback listens to batches or steps."""
        return self.context.batch

    @property
    def loss(self) -> torch.Tensor | None:
        """The loss of the last batch on this rank; reading its number waits for the device."""
        return self.context.accumulator.last_loss if self.context.has_fit else None

    @property
    def monitor(self) -> str:
        """The metric that decides which checkpoint is the best."""
        return self.context.monitor

    @property
    def stop_reason(self) -> str:
        """Why the training was stopped; empty when it was not."""
        return self.context.stop_reason

    @property
    def world(self) -> World:
        """This rank and its peers."""
        return self.context.world

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return (self._set_up() if self._needs_engine else self.context).device

    @property
    def folder(self) -> Path:
        """The run folder, from the first `fit`, `test` … on."""
        return self.context.folder

    @property
    def checkpoints(self) -> Path:
        """The folder of the last fit's checkpoints: ``TrainConfig(resume=str(trainer.checkpoints))``."""
        if self._fit is None:
            raise UsageError("trainer.checkpoints is known from fit() on.")
        return self._fit.checkpoints.folder

    @property
    def optimizers(self) -> list[Any]:
        """The torch optimizers, whether one was given, a list or a dict."""
        return list(self._named_optimizers().values())

    @property
    def loggers(self) -> list[Any]:
        """Where metrics go; empty except on rank 0."""
        return list(self.context.loggers)

    # -- gradient-free training

    @classmethod
    def set_use_grad(cls, value: bool) -> None:
        """Set whether Trainers train with gradients; False is for optimizers with ask() and tell()."""
        cls._use_grad = bool(value)

    @property
    def use_grad(self) -> bool:
        """Whether this Trainer trains with gradients."""
        return self._use_grad

    @contextmanager
    def enable_grad_opt(self, optimizer: Any = None) -> Iterator[None]:
        """Train with gradients inside this block, with this optimizer."""
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
            self.optimizer, self._needs_engine = optimizer, True
        try:
            yield
        finally:
            del self._use_grad
            if optimizer is not None:
                self.optimizer, self._needs_engine = before, True

    @property
    def is_gradient_free(self) -> bool:
        """Whether `fit` uses ask() and tell() instead of gradients."""
        asks = is_gradient_free(self.optimizer)
        if self.use_grad and asks:
            raise UsageError(
                f"{type(self.optimizer).__name__} trains without gradients: "
                "call Trainer.set_use_grad(False), or use trainer.disable_grad_opt(optimizer)."
            )
        if not self.use_grad and not asks and self.optimizer is not None:
            raise UsageError(
                f"set_use_grad(False) needs an optimizer with ask() and tell() (nevergrad); "
                f"{type(self.optimizer).__name__} needs gradients: Trainer.set_use_grad(True)."
            )
        return asks

    # -- set-up

    def _set_up(self) -> TrainContext:
        """Return the context, with ranks and model set up at the first use."""
        context = self.context
        context.task = self._make_task()
        if self._needs_engine:
            build_engine(context)
            self._needs_engine = False
            if self.optimizer is None and context.engine.optimizers:
                self.optimizer = context.engine.optimizers[0]  # the strategy made it
                context.task = self._make_task()
        return context

    def _make_task(self) -> TrainTask:
        own = self.optimize_step is not default_optimize_step
        drives = drives_optimizers(self.training_step)
        return TrainTask(
            model=self.model,
            optimizer=self.optimizer,
            optimizers=self._named_optimizers(),
            loss_fn=self.loss_fn,
            compute=self._compute,
            optimize_step=self.optimize_step if own else None,
            manual_step=self.training_step if drives else None,
            validation_step=self.validation_step,
            scheduler=self.scheduler,
            callbacks=[self, *self.callbacks],
            gradient_free=self.is_gradient_free,
        )

    def _named_optimizers(self) -> dict[str, Any]:
        if self.optimizer is None or self.is_gradient_free:
            return {}
        return named_optimizers(self.optimizer)

    def _make_compute(self, metrics: Mapping[str, Metric] | None) -> Compute:
        if drives_optimizers(self.training_step):
            return _no_compute
        return make_compute(self.loss_fn, self.training_step, metrics)

    def _evaluate(self, dataloader: Any, kind: str) -> dict[str, float]:
        context = self._set_up()
        loader = context.engine.loader(dataloader, training=False)
        with logged_pass(context, kind):
            try:
                values = evaluate(context, loader, kind)
            finally:
                loader.close()
            context.write_metrics(values, kind=kind)
        return values


def _no_compute(*_: Any) -> Any:
    raise UsageError("training_step(model, batch, step) drives the optimizers itself.")
