"""srun. Step-level variables go first: the job's may describe a larger job than this step."""

from __future__ import annotations

import os
from pathlib import Path

from allranks.errors import WorldError
from allranks.runtime.world.env_variables import (
    Env,
    parse_variable,
    read_int,
    require_int,
    step_id,
)
from allranks.runtime.world.hostlist import expand_counts, expand_hostlist
from allranks.runtime.world.model import DetectedRank

_SHELLS = {"bash", "sh", "zsh", "dash", "fish", "tcsh", "csh", "ksh"}


def read(env: Env) -> DetectedRank | None:
    """Read a task of srun; None in a batch script, salloc's shell or outside Slurm."""
    tasks = step_tasks(env)
    if tasks is None or _typed_in_a_terminal(env, tasks):
        return None
    rank = require_int(env, "SLURM_PROCID")
    if rank >= tasks:
        raise WorldError(
            f"SLURM_PROCID={rank}, but SLURM_STEP_NUM_TASKS={tasks}: a stale variable, or a "
            "heterogeneous step (srun a : b), which is not supported. Start one srun without ':'."
        )
    node_rank, nodes = require_int(env, "SLURM_NODEID"), _nodes(env)
    return DetectedRank(
        rank=rank,
        size=tasks,
        local_rank=require_int(env, "SLURM_LOCALID"),
        local_size=_tasks_here(env, tasks, node_rank, nodes),
        node_rank=node_rank,
        nodes=nodes,
        launcher="srun",
        reason=f"srun (SLURM_STEP_ID={step_id(env)}, task {rank} of {tasks})",
        master_addr=_first_host(env, nodes),
        rank_name="SLURM_PROCID",
        size_name="SLURM_STEP_NUM_TASKS",
    )


def step_tasks(env: Env) -> int | None:
    """Return the number of tasks of the step, or None outside a step."""
    if step_id(env) is None:
        return None
    return require_int(env, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")


def tasks_on_node(env: Env) -> int:
    """Return how many times srun started its command on this node; 1 outside a step."""
    tasks = step_tasks(env)
    if tasks is None:
        return 1
    return _tasks_here(env, tasks, require_int(env, "SLURM_NODEID"), _nodes(env))


def explain_single(env: Env) -> str:
    """Explain why a process inside an allocation is alone, for the reason of a world of one."""
    job = env.get("SLURM_JOB_ID")
    if not job:
        return ""
    tasks = read_int(env, "SLURM_NTASKS", "SLURM_NPROCS") or 1
    asked = f", though the job asks for {tasks} tasks" if tasks > 1 else ""
    where = "typed in an srun --pty shell" if step_id(env) is not None else "not started by srun"
    return f" in Slurm job {job}, {where}: one process{asked}"


def _nodes(env: Env) -> int:
    return require_int(env, "SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")


def _tasks_here(env: Env, tasks: int, node_rank: int, nodes: int) -> int:
    """Return this node's tasks; uneven steps have ``SLURM_STEP_TASKS_PER_NODE=2(x3),1``."""
    for name in ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"):
        if name in env:
            counts = parse_variable(env, name, expand_counts)
            if len(counts) == nodes and sum(counts) == tasks and node_rank < nodes:
                return counts[node_rank]
    if tasks % nodes:
        raise WorldError(
            f"{tasks} tasks on {nodes} nodes, and SLURM_STEP_TASKS_PER_NODE="
            f"{env.get('SLURM_STEP_TASKS_PER_NODE', '')} does not state how many are on node "
            f"{node_rank}."
        )
    return tasks // nodes


def _first_host(env: Env, nodes: int) -> str | None:
    """Return the node of task 0: the step's first, for every distribution but ``arbitrary``."""
    if nodes == 1:
        return None
    arbitrary = env.get("SLURM_DISTRIBUTION", "").startswith("arbitrary")
    names = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
    for name in ("SLURM_ARBITRARY_NODELIST",) if arbitrary else names:
        if env.get(name):
            return parse_variable(env, name, expand_hostlist)[0]
    return None


def _typed_in_a_terminal(env: Env, tasks: int) -> bool:
    """Whether this is a command typed in the shell of ``srun --pty -n8 bash``.

    Only task 0 has the terminal, and the other seven shells never run the command: a world of eight
    would wait forever. ``srun --pty python train.py`` is a task like any other.
    """
    task = read_int(env, "SLURM_TASK_PID")
    if tasks == 1 or "SLURM_PTY_PORT" not in env or task in (None, os.getpid()):
        return False
    try:
        words = Path(f"/proc/{task}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    except OSError:
        return False
    shell = Path(words[0].lstrip("-")).name if words else ""
    return shell in _SHELLS and all(word in ("-i", "-l", "--login") for word in words[1:])
