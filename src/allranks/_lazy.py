"""Names of a package that are loaded when they are first used."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def names_from(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The package's ``__getattr__``: each name comes from its home, a module below the package."""

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        home = importlib.import_module(f"{package}.{homes[name]}")
        return home if homes[name] == name else getattr(home, name)

    return load
