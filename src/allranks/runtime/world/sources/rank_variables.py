"""RANK, WORLD_SIZE, LOCAL_RANK …: by torchrun, accelerate, deepspeed, our agent, or a user.

`read` answers only where a launcher's own mark is beside them: then they are the innermost word.
Without a mark they may as well be a batch script's export, and `allranks.runtime.world.detection` compares
them first.
"""

from __future__ import annotations

import re
import socket

from allranks.errors import WorldError
from allranks.runtime.world.env_variables import Env, given, number, required
from allranks.runtime.world.model import DetectedRank
from allranks.runtime.world.sources import slurm_tasks as slurm

FULL = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_OWN_ID = re.compile(r"(none|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})?\Z")
"""Run ids torchrun makes up itself: such a group was not told of any other node."""


def read(env: Env) -> DetectedRank | None:
    """The place by a launcher that leaves its mark; None without one."""
    if given(env, "TORCHELASTIC_RUN_ID") and given(env, "RANK"):
        launcher = "accelerate" if given(env, "ACCELERATE_MIXED_PRECISION") else "torchrun"
        _once_per_node(env, launcher)
        return place(env, launcher, f"TORCHELASTIC_RUN_ID={env['TORCHELASTIC_RUN_ID']}")
    if given(env, "CROSS_SIZE") and given(env, "RANK") and given(env, "LOCAL_SIZE"):
        return place(env, "deepspeed", f"CROSS_RANK={env.get('CROSS_RANK', '')}")
    if given(env, "ALLRANKS_LAUNCHER") and all(given(env, name) for name in (*FULL, "NODE_RANK")):
        return place(env, "allranks", f"ALLRANKS_LAUNCHER={env['ALLRANKS_LAUNCHER']}")
    return None


def place(env: Env, launcher: str, why: str) -> DetectedRank:
    """The place these variables describe, with the optional ones worked out."""
    rank, size = required(env, "RANK"), required(env, "WORLD_SIZE")
    local_rank, local_size = _local(env, rank, size)
    nodes = _nodes(env, size, local_size)
    node_rank = number(env, *(("GROUP_RANK",) if _elastic(env) else ()), "NODE_RANK", "CROSS_RANK")
    if node_rank is None or node_rank >= nodes:
        node_rank = min((rank - local_rank) // local_size, nodes - 1)
    return DetectedRank(
        rank=rank,
        size=size,
        local_rank=local_rank,
        local_size=local_size,
        node_rank=node_rank,
        nodes=nodes,
        launcher=launcher,
        reason=f"{launcher} ({why}, rank {rank} of {size})",
    )


def half_set(env: Env) -> WorldError | None:
    """The error for RANK without WORLD_SIZE and the like, when no launcher explains the rest.

    MASTER_ADDR and MASTER_PORT alone are harmless; a lone WORLD_SIZE=1 is, too.
    """
    there = [name for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK") if given(env, name)]
    if not there or (there == ["WORLD_SIZE"] and number(env, "WORLD_SIZE") == 1):
        return None
    missing = [name for name in ("RANK", "WORLD_SIZE") if name not in there]
    if not missing:
        return None
    job = env.get("SLURM_JOB_ID")
    start = "start it with torchrun, srun or mpirun, or set RANK, LOCAL_RANK and WORLD_SIZE"
    if job:
        start = f"start it with srun (this process in Slurm job {job} was not): srun python …"
    shown = ", ".join(f"{name}={env[name]}" for name in there)
    return WorldError(
        f"{shown} set, but not {' and '.join(missing)}: nothing tells the rest. Either {start}; "
        f"or unset {' '.join(there)} for a single process."
    )


def _elastic(env: Env) -> bool:
    return given(env, "TORCHELASTIC_RUN_ID") is not None


def _local(env: Env, rank: int, size: int) -> tuple[int, int]:
    """Local rank and size. One process needs no telling, a Kubernetes pod holds one rank."""
    local_rank = number(env, "LOCAL_RANK")
    local_size = number(env, "LOCAL_WORLD_SIZE", "LOCAL_SIZE")
    if local_rank is None:
        if size == 1 or given(env, "KUBERNETES_SERVICE_HOST"):
            return 0, local_size or 1
        raise WorldError(
            f"RANK={rank} and WORLD_SIZE={size} are set, but not LOCAL_RANK: nothing tells which "
            "GPU is "
            "this process's. Set LOCAL_RANK (0 where each process has its own machine or GPU)."
        )
    if local_size is None:
        nodes = number(env, "NNODES", "CROSS_SIZE")
        local_size = size // nodes if nodes else _local_size_by_address(env, size)
    return local_rank, local_size


def _local_size_by_address(env: Env, size: int) -> int:
    """All ranks are here when they meet on this machine's loopback, or when there is one."""
    address = env.get("MASTER_ADDR", "localhost")
    if (
        size == 1
        or address in ("localhost", "::1", socket.gethostname())
        or address.startswith("127.")
    ):
        return size
    raise WorldError(
        f"LOCAL_WORLD_SIZE is not set, and MASTER_ADDR={address} is not this machine: nothing "
        "tells how "
        f"many of the {size} processes are on this node. Set LOCAL_WORLD_SIZE, or NNODES."
    )


def _nodes(env: Env, size: int, local_size: int) -> int:
    """Nodes in all: torchrun's groups, deepspeed's crossings, else by even division."""
    if _elastic(env) and (groups := number(env, "GROUP_WORLD_SIZE")):
        return groups
    if crossings := number(env, "CROSS_SIZE"):
        return crossings
    return number(env, "NNODES") or -(-size // local_size)


def _once_per_node(env: Env, launcher: str) -> None:
    """torchrun starts a node's ranks itself: srun must start it once per node and tell it so."""
    tasks, groups = slurm.step_tasks(env) or 1, number(env, "GROUP_WORLD_SIZE") or 1
    here, local = slurm.tasks_on_node(env), number(env, "LOCAL_WORLD_SIZE") or 1
    if here > 1 and groups != tasks:
        raise WorldError(
            f"srun started {launcher} {here} times on this node (SLURM_STEP_TASKS_PER_NODE="
            f"{env.get('SLURM_STEP_TASKS_PER_NODE', '')}), and each started "
            f"LOCAL_WORLD_SIZE={local} "
            f"processes: {here * local} where {local} are meant.\n"
            f"Start it once per node: srun --ntasks-per-node=1 {launcher} …"
        )
    if tasks > 1 and groups == 1 and _OWN_ID.match(env.get("TORCHELASTIC_RUN_ID", "")):
        raise WorldError(
            f"srun started {launcher} {tasks} times (SLURM_STEP_NUM_TASKS={tasks}), but each one "
            "believes "
            "to be alone (GROUP_WORLD_SIZE=1): as many separate trainings.\n"
            f"Give torchrun --nnodes={tasks} and a meeting point (--rdzv-backend=c10d "
            "--rdzv-endpoint=HOST:"
            "PORT --rdzv-id=$SLURM_JOB_ID); for separate runs use one srun --ntasks=1 each."
        )
