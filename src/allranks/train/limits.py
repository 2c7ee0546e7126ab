"""How long a training lasts: epochs, steps, seconds, or until somebody says stop."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from allranks.train.trainer import Trainer


class Limits:
    """Where the present ``fit`` ends; all ranks find the same, except `wants_stop`."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer, self._config, self._state = trainer, trainer.config, trainer.state

    def begin(self) -> None:
        """The time may have run out in an attempt before, which was not to end there."""
        if self._out_of_time(self._state.seconds_before):
            self._trainer._agree_to_stop()

    def is_over(self) -> bool:
        """Whether no step follows."""
        most = self._config.max_steps
        if most is not None and self._state.step >= most:
            return True
        return self._trainer._stop_agreed

    def has_ended(self, epoch: int) -> bool:
        """Whether no step of this epoch follows."""
        last = self._config.last_epoch
        return self.is_over() or (last is not None and epoch > last)

    def wants_stop(self) -> bool:
        """Whether this rank wants to end; the others are asked when all look."""
        self._out_of_time(self._state.seconds)
        return bool(self._trainer.stop_reason)

    def steps_left(self, step: int) -> float | None:
        """After so many, where that can be known."""
        total = self._state.total_steps
        return None if total is None else total - step

    def _out_of_time(self, seconds: float) -> bool:
        most = self._config.max_seconds
        if most is None or seconds < most:
            return False
        self._trainer.stop(f"max_time={self._config.max_time} is over")
        return True
