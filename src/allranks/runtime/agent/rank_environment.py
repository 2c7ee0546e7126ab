"""Which ranks this agent starts, and the environment variables that each of them gets."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from allranks.errors import WorldError
from allranks.runtime.world.env_variables import step_id

_DISCOVERY_SECONDS = 300.0
_node_workers: dict[int, list[str]] = {}
_GPU_DRIVERS = ("proc/driver/nvidia", "dev/nvidiactl", "dev/kfd")


class RankPlacement(NamedTuple):
    """The fields of `allranks.runtime.world.World` that the agent needs.

    A copy, because the agent is the first thing that every node of a job starts, and loading `world`
    would double its start-up time.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    node_rank: int
    nodes: int
    master_addr: str | None
    master_port: int | None
    host: str
    launcher: str
    reason: str

    def environment(self) -> dict[str, str]:
        """Return the variables that identify the rank and the rendezvous address."""
        values = {
            "RANK": self.rank,
            "LOCAL_RANK": self.local_rank,
            "WORLD_SIZE": self.size,
            "LOCAL_WORLD_SIZE": self.local_size,
            "NODE_RANK": self.node_rank,
            "MASTER_ADDR": self.master_addr,
            "MASTER_PORT": self.master_port,
        }
        return {name: str(value) for name, value in values.items() if value is not None}


def place_node(
    nprocs: int, nnodes: int | None, node_rank: int | None, env: Mapping[str, str]
) -> list[RankPlacement]:
    """Return the ranks of this node; all nodes have the same number."""
    nodes, node = _node(nnodes, node_rank, env)
    address, port = _rendezvous_address(nodes, env)
    host = env.get("SLURMD_NODENAME") or os.uname().nodename
    launcher = env.get("ALLRANKS_LAUNCHER") or "agent"
    return [
        RankPlacement(
            rank=node * nprocs + local,
            size=nodes * nprocs,
            local_rank=local,
            local_size=nprocs,
            node_rank=node,
            nodes=nodes,
            master_addr=address,
            master_port=port,
            host=host,
            launcher=launcher,
            reason=f"agent on node {node} of {nodes}",
        )
        for local in range(nprocs)
    ]


def place_one(env: Mapping[str, str]) -> RankPlacement:
    """Return the rank that this process is, whatever launcher started it."""
    from allranks.runtime.world.detection import detect

    world = detect(env)
    return RankPlacement(**{name: getattr(world, name) for name in RankPlacement._fields})


def _node(nnodes: int | None, node_rank: int | None, env: Mapping[str, str]) -> tuple[int, int]:
    step = in_step(env)
    if nnodes is None:
        nnodes = int(env.get("SLURM_STEP_NUM_NODES") or env.get("SLURM_NNODES") or 1) if step else 1
    if node_rank is None:
        node_rank = int(env.get("SLURM_NODEID") or 0) if step else 0
    if not 0 <= node_rank < nnodes:
        raise WorldError(
            f"Node rank {node_rank} is not possible with {nnodes} nodes: node ranks start at 0.\n"
            "Give --nnodes N and --node-rank K, or start the agent once per node with srun."
        )
    return nnodes, node_rank


def in_step(env: Mapping[str, str]) -> bool:
    """Return whether this process is a task of a real Slurm step."""
    # The batch script of a job sees SLURM_NODEID=0 and the size of the whole allocation as well,
    # but it runs on the first node alone. Only a real step runs on all of them.
    return step_id(env) is not None


def _rendezvous_address(nodes: int, env: Mapping[str, str]) -> tuple[str, int]:
    address, port = env.get("MASTER_ADDR", "").strip(), env.get("MASTER_PORT", "").strip()
    if port and not port.isdigit():
        raise WorldError(f"MASTER_PORT={port} is not a port number.")
    if nodes > 1 and not (address and port):
        missing = " and ".join(
            n for n, v in (("MASTER_ADDR", address), ("MASTER_PORT", port)) if not v
        )
        raise WorldError(
            f"{nodes} nodes, but {missing} is not set, so the ranks cannot connect.\n"
            "Export MASTER_ADDR (the first node) and MASTER_PORT (one for all) before the agent."
        )
    address = address or "127.0.0.1"
    return address, int(port) if port else _free_port(env)


def _free_port(env: Mapping[str, str]) -> int:
    from allranks.runtime.world.endpoints import derived_port, free_port

    # Two launches at one moment would both see the same first port free: each starts at its own.
    seed = env.get("SLURM_JOB_ID", "") + env.get("ALLRANKS_LAUNCH_ID", "") + str(os.getpid())
    return free_port("127.0.0.1", derived_port(seed))


def rank_environment(
    placement: RankPlacement, base: Mapping[str, str], threads: int
) -> dict[str, str]:
    """Return ``base`` with a rank's variables; of the optional ones, the user's values stay."""
    env = dict(base)
    env.update(placement.environment())
    env.setdefault("OMP_NUM_THREADS", str(threads))
    # A rank that dies must not lose its last lines in a buffer.
    env.setdefault("PYTHONUNBUFFERED", "1")
    env.setdefault("ALLRANKS_LAUNCHER", placement.launcher)
    framework = env.get("ALLRANKS_FRAMEWORK", "")
    if framework == "tensorflow":
        env.update(tensorflow_variables(placement, env))
    if framework == "horovod" or env.get("HOROVOD_GLOO_RENDEZVOUS_PORT"):
        env.update(legacy_keras(env))
        env.update(horovod_variables(placement, env))
    return env


def horovod_variables(placement: RankPlacement, env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for a rendezvous table that is served for Horovod.

    Ranks of horovodrun have them already; those of mpirun ask MPI, if their Horovod can.
    """
    from allranks.runtime.world import horovod_init as horovod

    address, port = env.get(horovod.ADDRESS), env.get(horovod.PORT)
    if address and port and not horovod.is_configured(placement, env):
        variables = horovod.gloo_variables(placement, address, int(port))
        return variables | horovod.network_variables(address, env)
    if not port and (why := horovod.mpi_mismatch(env)):
        raise WorldError(
            f"{why}: each rank would train alone.\n"
            "Use --launcher horovod, or build it again with that MPI: allranks frameworks install horovod"
        )
    return {}


def tensorflow_variables(placement: RankPlacement, env: Mapping[str, str]) -> dict[str, str]:
    """Return TF_CONFIG, and what SlurmClusterResolver needs on a node without GPUs."""
    from allranks.runtime.world.detection import launch_id
    from allranks.runtime.world.model import World
    from allranks.runtime.world.tf_config import (
        discover_workers,
        discover_workers_of_nodes,
        tf_config,
    )

    world = World(**placement._asdict())
    if _agent_per_rank(world.local_size, world.size, env):
        workers = discover_workers(world, launch_id(env), _DISCOVERY_SECONDS)
    else:
        workers = _node_workers.get(world.node_rank) or discover_workers_of_nodes(
            world, launch_id(env), _DISCOVERY_SECONDS
        )
        _node_workers[world.node_rank] = workers  # for this node's other ranks
    return {
        "TF_CONFIG": tf_config(workers, world.rank),
        **resolver_devices(world.local_size, env),
    }


def _agent_per_rank(local_size: int, size: int, env: Mapping[str, str]) -> bool:
    """Return whether every rank has an agent of its own, so that all can be asked at once."""
    from allranks.runtime.world.launcher_env import mpi_launchers as mpi

    if local_size == 1 or env.get("TORCHELASTIC_RUN_ID") or mpi.read(env) is not None:
        return True
    return in_step(env) and env.get("SLURM_STEP_NUM_TASKS") == str(size)


def resolver_devices(
    local_size: int, env: Mapping[str, str], root: Path = Path("/")
) -> dict[str, str]:
    """Return CUDA_VISIBLE_DEVICES with one entry per task, on a node without a GPU driver.

    SlurmClusterResolver divides the GPUs of a node among its tasks even where there are none: it asks
    nvidia-smi, and divides by zero. The variable means nothing to a machine without a driver.
    """
    import shutil

    known = "CUDA_VISIBLE_DEVICES" in env or shutil.which("nvidia-smi", path=env.get("PATH"))
    if not in_step(env) or known or any((root / each).exists() for each in _GPU_DRIVERS):
        return {}
    return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(local_size)))}


def legacy_keras(env: Mapping[str, str]) -> dict[str, str]:
    """Select Keras 2, the only one that Horovod supports, where tf_keras is installed."""
    from importlib.util import find_spec

    if "TF_USE_LEGACY_KERAS" in env or find_spec("tf_keras") is None:
        return {}
    return {"TF_USE_LEGACY_KERAS": "1"}
