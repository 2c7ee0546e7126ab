"""allranks: a training script from a laptop to many GPUs and many Slurm nodes.

Importing it imports nothing else; each name is loaded when it is first used, and torch only with
``init``, ``Trainer`` and ``prepare``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from allranks._version import __version__
from allranks.core.lazy_attributes import names_from

if TYPE_CHECKING:
    from allranks.errors import AllranksError as AllranksError
    from allranks.integrations import mpi as mpi
    from allranks.integrations import tensorflow as tensorflow
    from allranks.job.fields import Job as Job
    from allranks.runs.run_folder import Run as Run
    from allranks.runtime.preemption.deadline import deadline as deadline
    from allranks.runtime.world import World as World
    from allranks.runtime.world import init as init
    from allranks.runtime.world import shutdown as shutdown
    from allranks.runtime.world import world as world
    from allranks.schedulers import python_api as launch  # noqa: F401
    from allranks.train.config import TrainConfig as TrainConfig
    from allranks.train.custom_loop import prepare as prepare
    from allranks.train.trainer import Trainer as Trainer

_HOMES = {
    "AllranksError": "errors",
    "Job": "job.fields",
    "Run": "runs.run_folder",
    "TrainConfig": "train.config",
    "Trainer": "train.trainer",
    "World": "runtime.world.model",
    "deadline": "runtime.preemption.deadline",
    "init": "runtime.world.process_group",
    "prepare": "train.custom_loop",
    "shutdown": "runtime.world.process_group",
    "world": "runtime.world.process_group",
}

_MODULES = {
    "launch": "schedulers.python_api",
    "mpi": "integrations.mpi",
    "tensorflow": "integrations.tensorflow",
}

__all__ = ["__version__", *_HOMES, *_MODULES]
__getattr__ = names_from(__name__, _HOMES, _MODULES)
