"""When checkpoints are saved: at the best value of a metric, and every so often."""

from __future__ import annotations

from allranks.errors import UsageError
from allranks.train.callbacks.base import Callback
from allranks.train.callbacks.best import BestTracker
from allranks.train.callbacks.view import TrainerView


class SaveBest(BestTracker):
    """Saves "best" each time the monitored metric gets better.

    The new best is noted before it is saved, so that the checkpoint knows of itself.
    """

    def looked(self, trainer: TrainerView, value: float, better: bool) -> None:
        if better:
            trainer.save_checkpoint("best")


class SaveEvery(Callback):
    """Saves after every so many epochs or steps; the latest ``checkpoint_keep`` of them stay."""

    def __init__(self, epochs: int | None = None, steps: int | None = None) -> None:
        if epochs is None and steps is None:
            raise UsageError("SaveEvery: say how often: SaveEvery(epochs=1), SaveEvery(steps=500).")
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
