"""Learning-rate schedules as callbacks, an alternative to torch's schedulers.

Each computes the rate from the initial one, kept at the start of the training, and from the time that
has passed. Nothing is multiplied onto the present rate, so a resumed run, a rate that something else
changed in between, or two calls for one step do not bend the curve.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from allranks.errors import UsageError
from allranks.train.callbacks.base import Callback, TrainerView


class LRSchedule(Callback, ABC):
    """Base class: subclasses define ``rate(initial, time)``; time counts finished epochs or steps.

    ``TrainConfig.warmup_steps`` applies on top: it uses a fraction of the rate that is set here.
    """

    def __init__(self, per: str = "epoch") -> None:
        if per not in ("epoch", "step"):
            raise UsageError(f"{type(self).__name__}: per='{per}' must be 'epoch' or 'step'.")
        self.per = per
        self.initial: list[float] = []

    @abstractmethod
    def rate(self, initial: float, time: int) -> float:
        """Return the learning rate at this time."""

    def listens(self, event: str) -> bool:
        if event in ("step_end", "epoch_end"):
            return event == f"{self.per}_end"
        return super().listens(event)

    def on_fit_start(self, trainer: TrainerView) -> None:
        if trainer.step == 0 or not self.initial:
            self.initial = initial_rates(trainer)
        if trainer.step == 0:  # a resumed optimizer has its rate already
            self._set(trainer, 0)

    def on_step_end(self, trainer: TrainerView) -> None:
        self._set(trainer, trainer.step)

    def on_epoch_end(self, trainer: TrainerView) -> None:
        self._set(trainer, trainer.epoch)

    def state_dict(self) -> dict[str, Any]:
        return {"initial": list(self.initial)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.initial = list(state["initial"])

    def _set(self, trainer: TrainerView, time: int) -> None:
        set_rates(trainer, [self.rate(each, time) for each in self.initial])


class StepDecay(LRSchedule):
    """Multiplies the rate by ``factor`` every N epochs (or steps)."""

    def __init__(self, every: int, factor: float = 0.1, per: str = "epoch") -> None:
        super().__init__(per)
        if every < 1:
            raise UsageError(f"StepDecay: every={every} must be at least 1.")
        self.every, self.factor = every, factor

    def rate(self, initial: float, time: int) -> float:
        return float(initial * self.factor ** (time // self.every))


class Cyclic(LRSchedule):
    """Goes from ``base`` to ``top`` and back once per ``period``, for all parameter groups alike."""

    def __init__(self, base: float, top: float, period: int, per: str = "step") -> None:
        super().__init__(per)
        if period < 2:
            raise UsageError(f"Cyclic: period={period} must be at least 2.")
        self.base, self.top, self.period = base, top, period

    def rate(self, initial: float, time: int) -> float:
        place = (time % self.period) / self.period
        height = 1 - abs(2 * place - 1)
        return self.base + (self.top - self.base) * height


class Cosine(LRSchedule):
    """Half a cosine from the initial rate to ``min_lr`` at ``t_max``, and constant afterwards."""

    def __init__(self, t_max: int, min_lr: float = 0.0, per: str = "epoch") -> None:
        super().__init__(per)
        if t_max < 1:
            raise UsageError(f"Cosine: t_max={t_max} must be at least 1.")
        self.t_max, self.min_lr = t_max, min_lr

    def rate(self, initial: float, time: int) -> float:
        height = (1 + math.cos(math.pi * min(time, self.t_max) / self.t_max)) / 2
        return self.min_lr + (initial - self.min_lr) * height


def initial_rates(trainer: TrainerView) -> list[float]:
    """Return the current rate of every parameter group."""
    return [float(group["lr"]) for group in _groups(trainer)]


def set_rates(trainer: TrainerView, rates: list[float]) -> None:
    """Set the learning rates, group by group."""
    for group, rate in zip(_groups(trainer), rates, strict=True):
        if hasattr(group["lr"], "fill_"):  # a tensor, for compiled and captured optimizers
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def _groups(trainer: TrainerView) -> list[Any]:
    return [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
