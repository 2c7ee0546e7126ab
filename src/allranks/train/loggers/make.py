"""Loggers by name. Only those that were asked for are loaded."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from allranks.errors import UsageError, did_you_mean
from allranks.train.loggers.base import Logger
from allranks.train.loggers.jsonl import JsonlLogger

KINDS = {
    "jsonl": "JsonlLogger",
    "csv": "CsvLogger",
    "tensorboard": "TensorBoardLogger",
    "mlflow": "MLflowLogger",
    "wandb": "WandbLogger",
}


def make_loggers(names: Sequence[str | Logger]) -> list[Logger]:
    """The loggers of a run: always the JSONL file, then those asked for, each once."""
    if isinstance(names, str):
        names = [names]
    made: list[Logger] = [each for each in names if isinstance(each, JsonlLogger)]
    made = made[:1] or [JsonlLogger()]
    seen = {"jsonl"}
    for each in names:
        if isinstance(each, Logger):
            made += [each] if each not in made else []
        elif (name := _known(each)) not in seen:
            seen.add(name)
            made.append(getattr(import_module("allranks.train.loggers"), KINDS[name])())
    return made


def _known(name: object) -> str:
    if not isinstance(name, str):
        kind = name.__name__ if isinstance(name, type) else type(name).__name__
        raise UsageError(f"loggers: {kind} is neither a name nor a Logger object.")
    lowered = name.lower()
    if lowered in KINDS:
        return lowered
    hint = did_you_mean(lowered, KINDS)
    raise UsageError(f"There is no logger '{name}': there are {', '.join(KINDS)}.{hint}")
