"""Detects the rank of this process from its launcher's variables, the innermost launcher first.

    ALLRANKS_WORLD                                  set by the user
    ALLRANKS_SPAWNED                                RANK … as the script that asked for ranks set them
    torchrun, accelerate, deepspeed, allranks       RANK … beside a variable of the launcher
    horovodrun, mpirun, TF_CONFIG, srun             their own variables; RANK … must agree
    RANK, WORLD_SIZE, LOCAL_RANK                    the variables alone
    none of them                                    one process

Two sources that disagree are an error which names both: a wrong rank costs a night, an error a
minute.
"""

from __future__ import annotations

import os
import socket

from allranks.errors import WorldError
from allranks.runtime.world.endpoints import derived_port
from allranks.runtime.world.env_variables import (
    Env,
    first_set,
    has_private_devices,
    hydra_proxy,
    read_int,
    step_id,
    visible_devices,
)
from allranks.runtime.world.launcher_env import framework_launchers as frameworks
from allranks.runtime.world.launcher_env import mpi_launchers as mpi
from allranks.runtime.world.launcher_env import rank_variables as contract
from allranks.runtime.world.launcher_env import slurm_tasks as slurm
from allranks.runtime.world.launcher_env import world_override as override
from allranks.runtime.world.model import DetectedRank, World

_LAUNCHES = ("PMIX_NAMESPACE", "I_MPI_HYDRA_UUID", "HOROVOD_GLOO_RENDEZVOUS_PORT")
"""Variables that differ between two launches of one user on one machine."""
_READERS = (frameworks.read_horovod, mpi.read, frameworks.read_tensorflow, slurm.read)


def detect(env: Env = os.environ) -> World:
    """Return the world of this process, from its environment alone."""
    found = (
        override.read(env)
        or contract.read_spawned(env)
        or contract.read(env)
        or _detect_launcher(env)
        or _detect_without_launcher(env)
    )
    return _complete(env, found)


def launch_id(env: Env) -> str:
    """Return what all ranks of this launch share and others do not: the seed of port and token."""
    if mark := env.get(contract.SPAWNED):
        return mark
    if job := env.get("SLURM_JOB_ID"):
        # Open MPI starts daemons by srun on every node but the first, so there the step differs.
        step = None if first_set(env, "OMPI_COMM_WORLD_RANK") else step_id(env)
        parts = [job, str(step), env.get("SLURM_RESTART_COUNT", "0")]
    else:
        parts = [str(os.getuid())]
    parts += [env.get(name, "") for name in _LAUNCHES]
    if first_set(env, "PMI_RANK") and read_int(env, "MPI_LOCALNRANKS") == read_int(env, "PMI_SIZE"):
        parts.append(hydra_proxy())
    return "/".join(parts)


def _detect_launcher(env: Env) -> DetectedRank | None:
    """Read the launcher's own variables, and compare them with RANK and the rest."""
    for read in _READERS:
        found = read(env)
        if found is not None:
            return _compare(env, found)
    return None


def _detect_without_launcher(env: Env) -> DetectedRank:
    """Read RANK and the rest without a launcher's variables; else one process."""
    if error := contract.incomplete_error(env):
        raise error
    if first_set(env, "RANK"):
        pod = first_set(env, "KUBERNETES_SERVICE_HOST") and not first_set(env, "LOCAL_RANK")
        return contract.read_numbers(
            env, "kubernetes" if pod else "environment", "RANK and WORLD_SIZE are set"
        )
    note = slurm.explain_single(env)
    if first_set(env, "ACCELERATE_MIXED_PRECISION"):
        return DetectedRank(
            0, 1, 0, 1, 0, 1, "accelerate", "accelerate (one process: RANK is not set)"
        )
    return DetectedRank(
        0, 1, 0, 1, 0, 1, "plain", f"plain python{note}" if note else "plain python, one process"
    )


def _compare(env: Env, found: DetectedRank) -> DetectedRank:
    """Compare the launcher's numbers with RANK, WORLD_SIZE, LOCAL_RANK and NODE_RANK where they are set.

    A batch script that exports WORLD_SIZE, MASTER_ADDR and MASTER_PORT and leaves the ranks to
    srun is fine. Processes that a task started itself (more ranks than tasks, all four variables
    set) count by these variables.
    """
    size = read_int(env, "WORLD_SIZE")
    full = all(first_set(env, name) for name in contract.FULL)
    if full and size is not None and (size > found.size or found.size == 1):
        why = f"RANK and WORLD_SIZE are set inside {found.launcher}"
        return contract.read_numbers(env, "environment", why)
    pairs = (
        ("RANK", found.rank_name, found.rank),
        ("WORLD_SIZE", found.size_name, found.size),
        ("LOCAL_RANK", f"{found.launcher}'s local rank", found.local_rank),
        ("NODE_RANK", f"{found.launcher}'s node number", found.node_rank),
    )
    for name, other, value in pairs:
        given = read_int(env, name)
        if given in (None, value) or (name == "NODE_RANK" and found.launcher != "srun"):
            continue
        raise _contradiction(name, given, other, value, found)
    return found


def _contradiction(
    name: str, given: int | None, other: str, value: int, found: DetectedRank
) -> WorldError:
    names = {"LOCAL_RANK": "SLURM_LOCALID", "NODE_RANK": "SLURM_NODEID"}
    if found.launcher == "srun":
        other = names.get(name, other)
    advice = (
        f"A batch script that exports {name} gives every task the same value: remove that line."
        if name != "WORLD_SIZE"
        else f"Remove the export, or start {given} processes ({found.launcher} started {value})."
    )
    return WorldError(
        f"{name}={given}, but {other}={value}. Found: {found.reason}.\n{advice}\n"
        "To override: ALLRANKS_WORLD=rank=…,world_size=… or ALLRANKS_WORLD=single."
    )


def _complete(env: Env, found: DetectedRank) -> World:
    """Add the address, the port and the host."""
    stated = found.launcher == "override"
    address, port = found.master_addr, found.master_port
    if not stated or address is None:
        address = env.get("MASTER_ADDR", "").strip() or address
    if not stated or port is None:
        port = read_int(env, "MASTER_PORT") or port
    if port is not None and not 0 < port < 65536:
        raise WorldError(f"MASTER_PORT={port} is not a port. Choose one between 1024 and 65535.")
    if address is None and found.nodes == 1:
        address = "127.0.0.1"
    derived = derived_port(launch_id(env))
    # An agent between srun and us passes the derived port on, which is not known to be free.
    has_given_port = port is not None and (port != derived or first_set(env, "TORCHELASTIC_RUN_ID"))
    return World(
        rank=found.rank,
        size=found.size,
        local_rank=found.local_rank,
        local_size=found.local_size,
        node_rank=found.node_rank,
        nodes=found.nodes,
        master_addr=address,
        master_port=port or derived,
        host=env.get("SLURMD_NODENAME") or socket.gethostname(),
        launcher=found.launcher,
        reason=found.reason,
        visible_devices=visible_devices(env),
        # The ranks that a task started share its GPUs.
        private_devices=has_private_devices(env) and found.launcher != "spawn",
        port_is_given=bool(has_given_port),
    )
