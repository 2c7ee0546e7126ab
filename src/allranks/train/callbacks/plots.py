"""Figures of the model while it trains, into the run folder and to the loggers."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from allranks.errors import UsageError
from allranks.train.callbacks.base import Callback
from allranks.train.callbacks.view import TrainerView

Plot = Callable[[Any, int], Any]


class WritePlots(Callback):
    """Calls ``function(model, epoch) -> (name, figure)`` after every so many epochs.

    Matplotlib figures are saved as ``plots/NAME-EPOCH.png`` in the run folder; every logger gets the
    figure as it is. Functions run on rank 0, and on every rank when the model's parameters are
    sharded, since its forward is then a joint operation. The model is in evaluation mode meanwhile.
    A plot that fails is reported and skipped: it is no reason to lose the training.
    """

    def __init__(self, functions: Plot | Sequence[Plot], every: int = 1) -> None:
        if every < 1:
            raise UsageError(f"WritePlots: every={every} must be at least 1.")
        self.functions = [functions] if callable(functions) else list(functions)
        self.every = every

    def on_epoch_end(self, trainer: TrainerView) -> None:
        if trainer.epoch % self.every:
            return
        if not (trainer.world.is_main or is_sharded(trainer.model)):
            return
        with evaluating(trainer.model):
            for function in self.functions:
                self._plot(trainer, function)

    def _plot(self, trainer: TrainerView, function: Plot) -> None:
        try:
            made = function(trainer.model, trainer.epoch)
            if made is not None:
                self._keep(trainer, *made)
        except Exception as error:  # noqa: BLE001  user code that only draws must not end a long run
            name = getattr(function, "__name__", type(function).__name__)
            trainer.say(f"Plot {name} failed: {type(error).__name__}: {error}")

    def _keep(self, trainer: TrainerView, name: str, figure: Any) -> None:
        if trainer.world.is_main:
            if hasattr(figure, "savefig"):
                folder = trainer.folder / "plots"
                folder.mkdir(parents=True, exist_ok=True)
                figure.savefig(folder / f"{file_name(name)}-{trainer.epoch}.png")
            for logger in trainer.loggers:
                logger.figure(name, figure, step=trainer.step)
        _close(figure)


def is_sharded(model: Any) -> bool:
    """Whether some parameter is spread over ranks."""
    return any(hasattr(each, "placements") for each in model.parameters())


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Evaluation mode, and afterwards for every module the mode it was in: some may be frozen."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def file_name(name: str) -> str:
    """The name without what has a meaning in a path."""
    return re.sub(r"[^\w.=+-]+", "_", name).strip("._") or "plot"


def _close(figure: Any) -> None:
    """pyplot keeps every figure it made until it is told otherwise."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None and isinstance(figure, pyplot.Figure):
        pyplot.close(figure)
