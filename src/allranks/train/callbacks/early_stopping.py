"""End the training when a metric no longer gets better."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from allranks.errors import UsageError
from allranks.train.callbacks.best import BestTracker, Criterion
from allranks.train.callbacks.view import TrainerView


class EarlyStopping(BestTracker):
    """Stops after ``patience`` looks at ``monitor`` in a row without progress.

    Progress is a change for the better by more than ``min_delta``. NaN counts as no progress, and with
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

    def looked(self, trainer: TrainerView, value: float, better: bool) -> None:
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
            return f"{self.monitor} was looked at {times} and never was a usable number."
        best = f"the best was {self.best:.6g} in epoch {self.best_epoch}"
        return f"{self.monitor} was looked at {times} without progress; {best}."
