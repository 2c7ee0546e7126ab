"""Callbacks that follow one metric: early stopping, saving the best, lowering the learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from allranks.errors import UsageError, did_you_mean
from allranks.runtime.world.communicator import get_communicator
from allranks.train.callbacks.base import Callback, TrainerView
from allranks.train.callbacks.lr_schedules import initial_rates, set_rates

Criterion = Callable[[float, float, float], bool]


class BestTracker(Callback):
    """Reads a metric and remembers its best value, epoch and step.

    A metric whose name starts with ``val_`` is read after every validation, others after every epoch. NaN
    is never better than anything. All ranks use rank 0's value and so come to the same decision.
    ``criterion(current, best, epsilon)`` overrides ``mode``.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        mode: str = "min",
        epsilon: float = 0.0,
        criterion: Criterion | None = None,
    ) -> None:
        if mode not in ("min", "max"):
            raise UsageError(f"{type(self).__name__}: mode='{mode}' must be 'min' or 'max'.")
        self.monitor, self.mode, self.epsilon, self.criterion = monitor, mode, epsilon, criterion
        self.best: float | None = None
        self.best_epoch = self.best_step = 0

    def on_value(self, trainer: TrainerView, value: float, better: bool) -> None:
        """Called with each value of the metric; for subclasses."""

    def on_val_end(self, trainer: TrainerView) -> None:
        if self.monitor.startswith("val_"):
            self._read_value(trainer)

    def on_epoch_end(self, trainer: TrainerView) -> None:
        if not self.monitor.startswith("val_"):
            self._read_value(trainer)

    def is_better(self, value: float) -> bool:
        """Whether this value is better than the best so far."""
        if math.isnan(value):
            return False
        if self.criterion is not None:
            if self.best is None:
                return math.isfinite(value)
            return bool(self.criterion(value, self.best, self.epsilon))
        if self.mode == "min":
            return value < (math.inf if self.best is None else self.best) - self.epsilon
        return value > (-math.inf if self.best is None else self.best) + self.epsilon

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "best_epoch": self.best_epoch, "best_step": self.best_step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.best = state["best"]
        self.best_epoch, self.best_step = state["best_epoch"], state["best_step"]

    def _read_value(self, trainer: TrainerView) -> None:
        # Rank 0's value: one that a callback logged may differ, and all ranks must decide alike.
        found = get_communicator(trainer.world.size).call_on_rank_zero(
            lambda: self._value(trainer.metrics)
        )
        value = float(found)
        better = self.is_better(value)
        if better:
            self.best, self.best_epoch, self.best_step = value, trainer.epoch, trainer.step
        self.on_value(trainer, value, better)

    def _value(self, metrics: Mapping[str, float]) -> float:
        if self.monitor in metrics:
            return float(metrics[self.monitor])
        hint = did_you_mean(self.monitor, list(metrics))
        raise UsageError(
            f"{type(self).__name__} monitors '{self.monitor}', but the metrics are "
            f"{', '.join(sorted(metrics)) or 'none yet'}.{hint}"
        )


class EarlyStopping(BestTracker):
    """Stops after ``patience`` values of ``monitor`` in a row without progress.

    Progress is an improvement by more than ``min_delta``. NaN counts as no progress, and with
    ``stop_on_nan`` ends the training at once.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        patience: int = 5,
        mode: str = "min",
        min_delta: float = 0.0,
        criterion: Criterion | None = None,
        stop_on_nan: bool = False,
    ) -> None:
        super().__init__(monitor, mode, min_delta, criterion)
        if patience < 1:
            raise UsageError(f"EarlyStopping: patience={patience} must be at least 1.")
        self.patience, self.stop_on_nan = patience, stop_on_nan
        self.waited = 0

    def on_value(self, trainer: TrainerView, value: float, better: bool) -> None:
        self.waited = 0 if better else self.waited + 1
        if self.stop_on_nan and math.isnan(value):
            trainer.stop(f"{self.monitor} is NaN in epoch {trainer.epoch}.")
        elif self.waited >= self.patience:
            trainer.stop(self._reason())

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "waited": self.waited}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.waited = int(state["waited"])

    def _reason(self) -> str:
        times = "once" if self.waited == 1 else f"{self.waited} times in a row"
        if self.best is None:
            return f"{self.monitor} was measured {times} and was never a usable number."
        best = f"the best was {self.best:.6g} in epoch {self.best_epoch}"
        return f"{self.monitor} was measured {times} without progress; {best}."


class ReduceOnPlateau(BestTracker):
    """Multiplies the learning rate by ``factor`` after ``patience`` values without progress.

    The rate is ``initial · factor^reductions`` and never below ``min_lr``. NaN is no progress.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        min_lr: float = 0.0,
        epsilon: float = 0.0,
        criterion: Criterion | None = None,
    ) -> None:
        super().__init__(monitor, mode, epsilon, criterion)
        if not 0 < factor < 1:
            raise UsageError(f"ReduceOnPlateau: factor={factor} must be between 0 and 1.")
        if patience < 1:
            raise UsageError(f"ReduceOnPlateau: patience={patience} must be at least 1.")
        self.factor, self.patience, self.min_lr = factor, patience, min_lr
        self.initial: list[float] = []
        self.waited = self.reductions = 0

    def on_fit_start(self, trainer: TrainerView) -> None:
        if trainer.step == 0 or not self.initial:
            self.initial = initial_rates(trainer)

    def on_value(self, trainer: TrainerView, value: float, better: bool) -> None:
        self.waited = 0 if better else self.waited + 1
        if self.waited >= self.patience:
            self.waited = 0
            self.reductions += 1
            set_rates(trainer, [self._rate(each) for each in self.initial])

    def state_dict(self) -> dict[str, Any]:
        own = {"initial": list(self.initial), "waited": self.waited, "reductions": self.reductions}
        return {**super().state_dict(), **own}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.initial = list(state["initial"])
        self.waited, self.reductions = int(state["waited"]), int(state["reductions"])

    def _rate(self, initial: float) -> float:
        lowest = min(self.min_lr, initial)
        return float(max(initial * self.factor**self.reductions, lowest))


class SaveBest(BestTracker):
    """Saves "best" each time the monitored metric improves.

    The new best is recorded before it is saved, so that the checkpoint contains it.
    """

    def on_value(self, trainer: TrainerView, value: float, better: bool) -> None:
        if better:
            trainer.save_checkpoint("best")


class SaveEvery(Callback):
    """Saves every N epochs or steps; the latest ``checkpoint_keep`` of them are kept."""

    def __init__(self, epochs: int | None = None, steps: int | None = None) -> None:
        if epochs is None and steps is None:
            raise UsageError(
                "SaveEvery needs an interval: SaveEvery(epochs=1) or SaveEvery(steps=500)."
            )
        for name, value in (("epochs", epochs), ("steps", steps)):
            if value is not None and value < 1:
                raise UsageError(f"SaveEvery: {name}={value} must be at least 1.")
        self.epochs, self.steps = epochs, steps

    def listens(self, event: str) -> bool:
        if event == "step_end":
            return self.steps is not None
        return super().listens(event)

    def on_step_end(self, trainer: TrainerView) -> None:
        if self.steps is not None and trainer.step % self.steps == 0:
            trainer.save_checkpoint()

    def on_epoch_end(self, trainer: TrainerView) -> None:
        if self.epochs is not None and trainer.epoch % self.epochs == 0:
            trainer.save_checkpoint()
