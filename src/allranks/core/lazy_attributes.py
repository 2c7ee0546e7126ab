"""Names of a package that are loaded when they are first used."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def names_from(
    package: str, homes: Mapping[str, str], modules: Mapping[str, str] | None = None
) -> Callable[[str], Any]:
    """Return the package's ``__getattr__``.

    ``homes`` maps a name to the module below the package that defines it; ``modules`` maps a name
    to the module that it stands for.
    """
    modules = modules or {}

    def load(name: str) -> Any:
        if name in modules:
            return importlib.import_module(f"{package}.{modules[name]}")
        if name not in homes:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)

    return load
