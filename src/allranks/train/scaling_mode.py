"""A training that ``allranks scale`` measures: shorter, and with nothing but steps.

The study configures its ranks through the environment, so a Trainer script needs no change and no option.
"""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

from allranks.errors import UsageError
from allranks.train.config import TrainConfig

VARIABLE = "ALLRANKS_STUDY"
WINDOWS, MIN_STEPS = 10, 5
"""Log windows of a study, if it has enough steps; steps of a window, at least, since what is done once per
window would otherwise show up in every step."""


def in_study() -> bool:
    """Whether this process is a point of a scaling study.

    A learning-rate schedule is then not used: it is made for a number of steps and may refuse others.
    """
    return bool(os.environ.get(VARIABLE))


def study_config(config: TrainConfig) -> TrainConfig:
    """Return the configuration of a point of a scaling study; outside of one, the same.

    It has the study's number of steps, whatever the epochs, and writes nothing but metrics. One batch of a
    validation or test remains: scripts read ``val_loss``, and it is not part of the time of a step.
    """
    study = _read_study()
    if not study:
        return config
    steps = int(study.get("steps") or 100)
    changes: dict[str, Any] = {
        "max_steps": steps, "epochs": None, "max_iter": None, "patience": None,
        "checkpoint": False, "resume": False, "val_every_steps": None, "max_val_batches": 1,
        "plot_every": 0, "loggers": (), "log_model": False,
        "log_every": max(MIN_STEPS, min(config.log_every, steps // WINDOWS)),
    }  # fmt: skip
    if study.get("batch"):
        changes["batch_size_is"] = study["batch"]
    return dataclasses.replace(config, **changes)


def _read_study() -> dict[str, Any]:
    text = os.environ.get(VARIABLE)
    if not text:
        return {}
    try:
        study = json.loads(text)
    except ValueError:
        study = None
    if not isinstance(study, dict):
        raise UsageError(
            f"{VARIABLE} is set by allranks scale, but holds no JSON object: {text!r}.\n"
            f"Unset it: unset {VARIABLE}"
        )
    return study
