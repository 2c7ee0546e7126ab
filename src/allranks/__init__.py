"""allranks: a training script from a laptop to many GPUs and many Slurm nodes.

Importing it imports nothing else; each name is loaded when it is first used, and torch only inside
``init``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from allranks._lazy import names_from
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
    "AllranksError": "errors",
    "Job": "job.fields",
    "Run": "runs.folder",
    "World": "distributed.model",
    "init": "distributed.process_group",
    "launch": "launch",
    "shutdown": "distributed.process_group",
    "world": "distributed.process_group",
}

__all__ = ["__version__", *_HOMES]
__getattr__ = names_from(__name__, _HOMES)
