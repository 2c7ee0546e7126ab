"""Lower the learning rate when a metric no longer gets better."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from allranks.errors import UsageError
from allranks.train.callbacks.best import BestTracker, Criterion
from allranks.train.callbacks.schedules import initial_rates, set_rates
from allranks.train.callbacks.view import TrainerView


class ReduceOnPlateau(BestTracker):
    """Times ``factor`` after ``patience`` looks at ``monitor`` in a row without progress.

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

    def looked(self, trainer: TrainerView, value: float, better: bool) -> None:
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
