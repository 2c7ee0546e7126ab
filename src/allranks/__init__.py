"""allranks: a training script from a laptop to many GPUs and many Slurm nodes.

Importing it imports nothing else; each name is loaded when it is first used, and torch only with
``init``, ``Trainer`` and ``prepare``.
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
    from allranks.leaving.deadline import deadline as deadline
    from allranks.runs.folder import Run as Run
    from allranks.train.config import TrainConfig as TrainConfig
    from allranks.train.own_loop import prepare as prepare
    from allranks.train.trainer import Trainer as Trainer

_HOMES = {
    "AllranksError": "errors",
    "Job": "job.fields",
    "Run": "runs.folder",
    "TrainConfig": "train.config",
    "Trainer": "train.trainer",
    "World": "distributed.model",
    "deadline": "leaving.deadline",
    "init": "distributed.process_group",
    "launch": "launch",
    "prepare": "train.own_loop",
    "shutdown": "distributed.process_group",
    "world": "distributed.process_group",
}

__all__ = ["__version__", *_HOMES]
__getattr__ = names_from(__name__, _HOMES)
