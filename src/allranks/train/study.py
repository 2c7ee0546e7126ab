"""A training that is measured by ``allranks scale``: shorter, and without all that is no step.

The study tells its ranks through the environment, so a Trainer script needs no change and no option.
"""

from __future__ import annotations

import dataclasses
import json
import os
from typing import TYPE_CHECKING, Any

from allranks.errors import UsageError
from allranks.train.config import TrainConfig

if TYPE_CHECKING:
    from allranks.train.trainer import Trainer

VARIABLE = "ALLRANKS_STUDY"
WINDOWS, LEAST = 10, 5
"""Windows of metrics that a study has, where it has as many steps; steps that a window has at least, since
what is done once in each would else be seen in every step."""


def shorten_for_study(trainer: Trainer) -> None:
    """Make a Trainer a point of a scaling study; outside of one, leave it as it is.

    Of a validation or test one batch is left: scripts read ``val_loss``, and it is no part of the time of
    a step. A schedule of the learning rate is made for so many steps and may refuse others, so it rests.
    """
    told = _told()
    if told:
        trainer.config = studied(trainer.config, told)
        trainer.max_batches = 1
        trainer.scheduler = None


def studied(config: TrainConfig, told: dict[str, Any]) -> TrainConfig:
    """The configuration for so many steps, whatever the epochs, with nothing written but metrics."""
    steps = int(told.get("steps") or 100)
    changes: dict[str, Any] = {
        "max_steps": steps, "epochs": None, "max_iter": None, "patience": None,
        "checkpoint": False, "resume": False, "val_every_steps": None,
        "plot_every": 0, "loggers": (), "log_model": False,
        "log_every": max(LEAST, min(config.log_every, steps // WINDOWS)),
    }  # fmt: skip
    if told.get("batch"):
        changes["batch_size_is"] = told["batch"]
    return dataclasses.replace(config, **changes)


def _told() -> dict[str, Any]:
    text = os.environ.get(VARIABLE)
    if not text:
        return {}
    try:
        told = json.loads(text)
    except ValueError:
        told = None
    if not isinstance(told, dict):
        raise UsageError(f"{VARIABLE} is set by allranks scale, but holds no JSON object: {text!r}")
    return told
