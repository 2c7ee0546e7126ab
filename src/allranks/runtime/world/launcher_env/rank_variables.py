"""RANK, WORLD_SIZE, LOCAL_RANK …: by torchrun, accelerate, deepspeed, our agent, or a user.

`read` trusts them only beside a variable that the launcher alone sets. Without one they may be a batch
script's export, and `allranks.runtime.world.detection` compares them first.
"""

from __future__ import annotations

import re
import socket

from allranks.errors import WorldError
from allranks.runtime.world.env_variables import Env, first_set, read_int, require_int
from allranks.runtime.world.launcher_env import slurm_tasks as slurm
from allranks.runtime.world.model import DetectedRank

SPAWNED = "ALLRANKS_SPAWNED"
FULL = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_OWN_ID = re.compile(r"(none|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})?\Z")
"""Run ids that torchrun makes up itself: such a group knows of no other node."""


def read(env: Env) -> DetectedRank | None:
    """Read the numbers of a launcher that sets a variable of its own; None without one."""
    if first_set(env, "TORCHELASTIC_RUN_ID") and first_set(env, "RANK"):
        launcher = "accelerate" if first_set(env, "ACCELERATE_MIXED_PRECISION") else "torchrun"
        _check_once_per_node(env, launcher)
        return read_numbers(env, launcher, f"TORCHELASTIC_RUN_ID={env['TORCHELASTIC_RUN_ID']}")
    if first_set(env, "CROSS_SIZE") and first_set(env, "RANK") and first_set(env, "LOCAL_SIZE"):
        return read_numbers(env, "deepspeed", f"CROSS_RANK={env.get('CROSS_RANK', '')}")
    if first_set(env, "ALLRANKS_LAUNCHER") and all(
        first_set(env, name) for name in (*FULL, "NODE_RANK")
    ):
        return read_numbers(env, "allranks", f"ALLRANKS_LAUNCHER={env['ALLRANKS_LAUNCHER']}")
    return None


def read_spawned(env: Env) -> DetectedRank | None:
    """Read a rank that `allranks.runtime.agent.self_launch` started; nodes hold equally many of them.

    It also inherits the variables of the srun task, or of the agent, in which its parent runs.
    """
    if not first_set(env, SPAWNED) or not first_set(env, "RANK"):
        return None
    rank, size = require_int(env, "RANK"), require_int(env, "WORLD_SIZE")
    local_size = require_int(env, "LOCAL_WORLD_SIZE")
    return DetectedRank(
        rank=rank,
        size=size,
        local_rank=require_int(env, "LOCAL_RANK"),
        local_size=local_size,
        node_rank=require_int(env, "NODE_RANK"),
        nodes=-(-size // max(local_size, 1)),
        launcher="spawn",
        reason=f"spawn (the script asked for nprocs={size}, rank {rank} of {size})",
    )


def read_numbers(env: Env, launcher: str, why: str) -> DetectedRank:
    """Read RANK and WORLD_SIZE, and derive the optional ones where they are not set."""
    rank, size = require_int(env, "RANK"), require_int(env, "WORLD_SIZE")
    local_rank, local_size = _local(env, rank, size)
    nodes = _nodes(env, size, local_size)
    node_rank = read_int(
        env, *(("GROUP_RANK",) if _elastic(env) else ()), "NODE_RANK", "CROSS_RANK"
    )
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


def incomplete_error(env: Env) -> WorldError | None:
    """Return the error for RANK without WORLD_SIZE and the like, when no launcher sets the rest.

    MASTER_ADDR and MASTER_PORT alone are harmless; a lone WORLD_SIZE=1 is, too.
    """
    there = [name for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK") if first_set(env, name)]
    if not there or (there == ["WORLD_SIZE"] and read_int(env, "WORLD_SIZE") == 1):
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
        f"{shown} set, but not {' and '.join(missing)}: the rest is unknown. Either {start}; "
        f"or unset {' '.join(there)} for a single process."
    )


def _elastic(env: Env) -> bool:
    return first_set(env, "TORCHELASTIC_RUN_ID") is not None


def _local(env: Env, rank: int, size: int) -> tuple[int, int]:
    """Return local rank and size. One process needs neither, a Kubernetes pod holds one rank."""
    local_rank = read_int(env, "LOCAL_RANK")
    local_size = read_int(env, "LOCAL_WORLD_SIZE", "LOCAL_SIZE")
    if local_rank is None:
        if size == 1 or first_set(env, "KUBERNETES_SERVICE_HOST"):
            return 0, local_size or 1
        raise WorldError(
            f"RANK={rank} and WORLD_SIZE={size} are set, but not LOCAL_RANK, which "
            "chooses this process's GPU. Set LOCAL_RANK (0 where each process has its own machine or GPU)."
        )
    if local_size is None:
        nodes = read_int(env, "NNODES", "CROSS_SIZE")
        local_size = size // nodes if nodes else _local_size_by_address(env, size)
    return local_rank, local_size


def _local_size_by_address(env: Env, size: int) -> int:
    """Return all ranks when rank 0's address is this machine's loopback, or when there is one rank."""
    address = env.get("MASTER_ADDR", "localhost")
    if (
        size == 1
        or address in ("localhost", "::1", socket.gethostname())
        or address.startswith("127.")
    ):
        return size
    raise WorldError(
        f"LOCAL_WORLD_SIZE is not set, and MASTER_ADDR={address} is not this machine, so it is "
        "unknown how "
        f"many of the {size} processes are on this node. Set LOCAL_WORLD_SIZE, or NNODES."
    )


def _nodes(env: Env, size: int, local_size: int) -> int:
    """Return the number of nodes: torchrun's groups, deepspeed's CROSS_SIZE, else by even division."""
    if _elastic(env) and (groups := read_int(env, "GROUP_WORLD_SIZE")):
        return groups
    if crossings := read_int(env, "CROSS_SIZE"):
        return crossings
    return read_int(env, "NNODES") or -(-size // local_size)


def _check_once_per_node(env: Env, launcher: str) -> None:
    """Refuse several torchruns on one node, and torchruns that do not know of each other."""
    tasks, groups = slurm.step_tasks(env) or 1, read_int(env, "GROUP_WORLD_SIZE") or 1
    here, local = slurm.tasks_on_node(env), read_int(env, "LOCAL_WORLD_SIZE") or 1
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
            "runs "
            "alone (GROUP_WORLD_SIZE=1): as many separate trainings.\n"
            f"Give torchrun --nnodes={tasks} and a rendezvous (--rdzv-backend=c10d "
            "--rdzv-endpoint=HOST:"
            "PORT --rdzv-id=$SLURM_JOB_ID); for separate runs use one srun --ntasks=1 each."
        )
