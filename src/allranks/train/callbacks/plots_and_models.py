"""What callbacks give to the run folder and the loggers: figures and the trained model."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from allranks.errors import UsageError
from allranks.train.callbacks.base import Callback, TrainerView

Plot = Callable[[Any, int], Any]


class WritePlots(Callback):
    """Calls ``function(model, epoch) -> (name, figure)`` every N epochs.

    Matplotlib figures are saved as ``plots/NAME-EPOCH.png`` in the run folder; every logger gets the
    figure as it is. Functions run on rank 0, and on every rank when the model's parameters are
    sharded, since its forward pass is then collective. The model is in evaluation mode meanwhile.
    A plot that fails is reported and skipped; training continues.
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
    """Whether any parameter is sharded over ranks."""
    return any(hasattr(each, "placements") for each in model.parameters())


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Switch to evaluation mode, and back to each module's own mode: some may be frozen."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def file_name(name: str) -> str:
    """Return the name without characters that are special in a path."""
    return re.sub(r"[^\w.=+-]+", "_", name).strip("._") or "plot"


def _close(figure: Any) -> None:
    """Close a figure of pyplot, which would keep it in memory."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None and isinstance(figure, pyplot.Figure):
        pyplot.close(figure)


class LogModel(Callback):
    """Gives every logger the model at the end of the training.

    A sharded model is gathered first by all ranks; loggers then get its state dict on the CPU.
    """

    def on_fit_end(self, trainer: TrainerView) -> None:
        model = trainer.model
        kept = _whole_state(model) if is_sharded(model) else model
        for logger in trainer.loggers:
            logger.model(kept)


def _whole_state(model: Any) -> Any:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return get_model_state_dict(model, options=options)
