"""What a rank of TensorFlow's gets beside the contract."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from allranks.runtime.agent.placement import Place, in_step
from allranks.runtime.world.detection import launch_id
from allranks.runtime.world.model import World
from allranks.runtime.world.sources import mpi_launchers as mpi
from allranks.runtime.world.worker_discovery import (
    discover_workers,
    discover_workers_of_nodes,
    tf_config,
)

_SECONDS = 300.0
_known: dict[int, list[str]] = {}
_DRIVERS = ("/proc/driver/nvidia", "/dev/nvidiactl", "/dev/kfd")


def tensorflow_variables(place: Place, env: Mapping[str, str]) -> dict[str, str]:
    """TF_CONFIG, and what SlurmClusterResolver needs to count on a node without GPUs."""
    world = World(**place._asdict())
    if _agent_per_rank(world, env):
        workers = discover_workers(world, launch_id(env), _SECONDS)
    else:
        workers = _known.get(world.node_rank) or discover_workers_of_nodes(
            world, launch_id(env), _SECONDS
        )
        _known[world.node_rank] = workers  # for this node's other ranks
    return {"TF_CONFIG": tf_config(workers, world.rank), **_counted_devices(world, env)}


def _agent_per_rank(world: World, env: Mapping[str, str]) -> bool:
    """Whether every rank has an agent of its own, so that all can be asked at once."""
    if world.local_size == 1 or env.get("TORCHELASTIC_RUN_ID") or mpi.read(env) is not None:
        return True
    return in_step(env) and env.get("SLURM_STEP_NUM_TASKS") == str(world.size)


def _counted_devices(world: World, env: Mapping[str, str]) -> dict[str, str]:
    """As many GPUs as tasks, where no driver is that could find one.

    SlurmClusterResolver divides the GPUs of a node among its tasks even where there are none: it asks
    nvidia-smi, and divides by nothing. The variable means nothing to a machine without a driver.
    """
    known = "CUDA_VISIBLE_DEVICES" in env or shutil.which("nvidia-smi", path=env.get("PATH"))
    if not in_step(env) or known or any(Path(each).exists() for each in _DRIVERS):
        return {}
    return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(world.local_size)))}


def legacy_keras(env: Mapping[str, str]) -> dict[str, str]:
    """Horovod works with Keras 2 alone: where tf_keras is installed, ``tf.keras`` is to be that."""
    from importlib.util import find_spec

    if "TF_USE_LEGACY_KERAS" in env or find_spec("tf_keras") is None:
        return {}
    return {"TF_USE_LEGACY_KERAS": "1"}
