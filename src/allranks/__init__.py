"""allranks: a training script from a laptop to many GPUs and many Slurm nodes.

Importing it imports nothing else; each name is loaded when it is first used, and torch only inside
``init``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from allranks._version import __version__

if TYPE_CHECKING:
    from allranks import launch as launch
    from allranks.distributed import World as World
    from allranks.distributed import init as init
    from allranks.distributed import shutdown as shutdown
    from allranks.distributed import world as world
    from allranks.errors import AllranksError as AllranksError
    from allranks.job.fields import Job as Job
    from allranks.runs.folder import Run as Run

_HOMES = {
    "AllranksError": "allranks.errors",
    "Job": "allranks.job.fields",
    "Run": "allranks.runs.folder",
    "World": "allranks.distributed",
    "init": "allranks.distributed",
    "shutdown": "allranks.distributed",
    "world": "allranks.distributed",
}

__all__ = ["__version__", "launch", *_HOMES]


def __getattr__(name: str) -> Any:
    if name == "launch":
        return importlib.import_module("allranks.launch")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'allranks' has no attribute '{name}'")
