"""Hand the trained model to the loggers that keep models."""

from __future__ import annotations

from typing import Any

from allranks.train.callbacks.base import Callback
from allranks.train.callbacks.plots import is_sharded
from allranks.train.callbacks.view import TrainerView


class LogModel(Callback):
    """Gives every logger the model at the end of the training.

    A sharded model is gathered first, which takes part of every rank; loggers then get its state
    dict, on the CPU, since no rank holds the module whole.
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
