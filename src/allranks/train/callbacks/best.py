"""The best value so far of one metric: what early stopping, saving and plateaus share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from allranks.errors import UsageError, did_you_mean
from allranks.train.callbacks.base import Callback
from allranks.train.callbacks.view import TrainerView
from allranks.train.session import share_result

Criterion = Callable[[float, float, float], bool]


class BestTracker(Callback):
    """Looks at a metric and remembers its best value, epoch and step.

    A metric whose name starts with ``val_`` is looked at after every validation, others after every
    epoch. NaN is never better than anything. The values are the same on all ranks, so all ranks come
    to the same decision. ``criterion(current, best, epsilon)`` overrules ``mode``.
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

    def looked(self, trainer: TrainerView, value: float, better: bool) -> None:
        """Called after each look; for subclasses."""

    def on_val_end(self, trainer: TrainerView) -> None:
        if self.monitor.startswith("val_"):
            self._look(trainer)

    def on_epoch_end(self, trainer: TrainerView) -> None:
        if not self.monitor.startswith("val_"):
            self._look(trainer)

    def is_better(self, value: float) -> bool:
        """Whether this value is progress over the best so far."""
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

    def _look(self, trainer: TrainerView) -> None:
        # Rank 0's: a value that a callback logged may differ, and all must decide alike.
        found = share_result(lambda: self._value(trainer.metrics), trainer.world, trainer.device)
        value = float(found)
        better = self.is_better(value)
        if better:
            self.best, self.best_epoch, self.best_step = value, trainer.epoch, trainer.step
        self.looked(trainer, value, better)

    def _value(self, metrics: Mapping[str, float]) -> float:
        if self.monitor in metrics:
            return float(metrics[self.monitor])
        hint = did_you_mean(self.monitor, list(metrics))
        raise UsageError(
            f"{type(self).__name__} looks at '{self.monitor}', but the metrics are "
            f"{', '.join(sorted(metrics)) or 'none yet'}.{hint}"
        )
