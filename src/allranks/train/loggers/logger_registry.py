"""Loggers by name, and the packages that only some of them need; nothing is imported before it is used."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from allranks.errors import MissingDependencyError, UsageError, did_you_mean
from allranks.train.loggers.base import Logger
from allranks.train.loggers.metric_files import JsonlLogger

KINDS = {
    "jsonl": "JsonlLogger",
    "csv": "CsvLogger",
    "tensorboard": "TensorBoardLogger",
    "mlflow": "MLflowLogger",
    "wandb": "WandbLogger",
}


def make_loggers(names: Sequence[str | Logger]) -> list[Logger]:
    """Return the loggers of a run: always the JSONL file, then those requested, each once."""
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
    raise UsageError(f"There is no logger '{name}'. Choose from {', '.join(KINDS)}.{hint}")


def need(logger: str, package: str, install: str | None = None) -> None:
    """Raise with the command to install a missing package. Imports nothing."""
    if importlib.util.find_spec(package) is None:
        raise MissingDependencyError(
            f"The {logger} logger needs the '{package}' package. "
            f"Install it with: pip install {install or package}"
        )


def load(module: str) -> Any:
    """Import a module when it is used: these packages take seconds to load."""
    return importlib.import_module(module)


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested dictionaries: ``{"model": {"width": 64}}`` becomes ``model.width``."""
    result: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            result.update(flat(value, f"{name}."))
        else:
            result[name] = value
    return result


def save_weights(model: Any, folder: Path) -> Path:
    """Save the weights as ``model.pt``, for loggers that upload files."""
    import torch

    state = model.state_dict() if hasattr(model, "state_dict") else model
    path = folder / "model.pt"
    torch.save(state, path)
    return path


def resumed_id(folder: Path, logger: str, resumed: bool) -> str | None:
    """Return the tracker's id of a run that is resumed."""
    path = folder / f"{logger}-run.txt"
    return path.read_text().strip() if resumed and path.exists() else None


def keep_id(folder: Path, logger: str, identity: str) -> None:
    """Store the id for ``resumed_id``."""
    (folder / f"{logger}-run.txt").write_text(f"{identity}\n")
