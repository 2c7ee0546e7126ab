"""Packages that only some loggers need, and hyperparameters in the forms they take."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from allranks.errors import MissingDependencyError


def need(logger: str, package: str, install: str | None = None) -> None:
    """An error that says what to install, unless the package is there. Imports nothing."""
    if importlib.util.find_spec(package) is None:
        raise MissingDependencyError(
            f"The {logger} logger needs the '{package}' package. "
            f"Install it with: pip install {install or package}"
        )


def load(module: str) -> Any:
    """The module, imported when it is used: these packages take seconds to load."""
    return importlib.import_module(module)


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries as one level: ``{"model": {"width": 64}}`` is ``model.width``."""
    result: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            result.update(flat(value, f"{name}."))
        else:
            result[name] = value
    return result


def save_weights(model: Any, folder: Path) -> Path:
    """The weights as ``model.pt``, for loggers that upload files."""
    import torch

    state = model.state_dict() if hasattr(model, "state_dict") else model
    path = folder / "model.pt"
    torch.save(state, path)
    return path


def resumed_id(folder: Path, logger: str, resumed: bool) -> str | None:
    """The id under which a server knows the run that is being continued."""
    path = folder / f"{logger}-run.txt"
    return path.read_text().strip() if resumed and path.exists() else None


def keep_id(folder: Path, logger: str, identity: str) -> None:
    """Note the id for ``resumed_id``."""
    (folder / f"{logger}-run.txt").write_text(f"{identity}\n")
