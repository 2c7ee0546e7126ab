"""Which process am I? Every launcher's variables, the innermost launcher first, and no guessing.

    ALLRANKS_WORLD                                  the user's word
    ALLRANKS_SPAWNED                                RANK … as the script that asked for ranks set them
    torchrun, accelerate, deepspeed, allranks       RANK … with the launcher's mark
    horovodrun, mpirun, TF_CONFIG, srun             their own variables; RANK … must agree
    RANK, WORLD_SIZE, LOCAL_RANK                    the variables alone
    none of them                                    one process

Two words that disagree are an error which names both: a wrong rank costs a night, an error a
minute.
"""

from __future__ import annotations

import os
import socket

from allranks.errors import WorldError
from allranks.runtime.world.endpoints import derived_port
from allranks.runtime.world.env_variables import (
    Env,
    given,
    hydra_proxy,
    number,
    private_devices,
    visible_devices,
)
from allranks.runtime.world.model import DetectedRank, World
from allranks.runtime.world.sources import framework_launchers as frameworks
from allranks.runtime.world.sources import mpi_launchers as mpi
from allranks.runtime.world.sources import rank_variables as contract
from allranks.runtime.world.sources import slurm_tasks as slurm
from allranks.runtime.world.sources import spawned_ranks as spawned
from allranks.runtime.world.sources import world_override as override

_LAUNCHES = ("PMIX_NAMESPACE", "I_MPI_HYDRA_UUID", "HOROVOD_GLOO_RENDEZVOUS_PORT")
"""Variables that differ between two launches of one user on one machine."""
_OUTER = (frameworks.read_horovod, mpi.read, frameworks.read_tensorflow, slurm.read)


def detect(env: Env = os.environ) -> World:
    """The world of this process, from its environment alone."""
    place = override.read(env)
    if place is None:
        place = spawned.read(env) or contract.read(env) or _outer(env) or _bare(env)
    return _complete(env, place)


def launch_id(env: Env) -> str:
    """What all ranks of this launch share and others do not: seeds the port and the token."""
    if mark := env.get(spawned.NAME):
        return mark
    if job := env.get("SLURM_JOB_ID"):
        # Open MPI starts daemons by srun on every node but the first, so there the step differs.
        step = None if given(env, "OMPI_COMM_WORLD_RANK") else slurm.step_id(env)
        parts = [job, str(step), env.get("SLURM_RESTART_COUNT", "0")]
    else:
        parts = [str(os.getuid())]
    parts += [env.get(name, "") for name in _LAUNCHES]
    if given(env, "PMI_RANK") and number(env, "MPI_LOCALNRANKS") == number(env, "PMI_SIZE"):
        parts.append(hydra_proxy())
    return "/".join(parts)


def _outer(env: Env) -> DetectedRank | None:
    """The launcher by its own variables, compared with RANK and the rest."""
    for read in _OUTER:
        place = read(env)
        if place is not None:
            return _compared(env, place)
    return None


def _bare(env: Env) -> DetectedRank:
    """No launcher shows: the contract variables alone, or one process."""
    if error := contract.half_set(env):
        raise error
    if given(env, "RANK"):
        pod = given(env, "KUBERNETES_SERVICE_HOST") and not given(env, "LOCAL_RANK")
        return contract.place(
            env, "kubernetes" if pod else "environment", "RANK and WORLD_SIZE are set"
        )
    note = slurm.note(env)
    if given(env, "ACCELERATE_MIXED_PRECISION"):
        return DetectedRank(
            0, 1, 0, 1, 0, 1, "accelerate", "accelerate (one process: RANK is not set)"
        )
    return DetectedRank(
        0, 1, 0, 1, 0, 1, "plain", f"plain python{note}" if note else "plain python, one process"
    )


def _compared(env: Env, place: DetectedRank) -> DetectedRank:
    """The place, if RANK, WORLD_SIZE, LOCAL_RANK and NODE_RANK agree with it as far as they are
    set.

    A batch script that exports WORLD_SIZE, MASTER_ADDR and MASTER_PORT and leaves the ranks to
    srun is fine. Processes that a task started itself (more ranks than tasks, all four variables
    set) are the inner word.
    """
    size = number(env, "WORLD_SIZE")
    full = all(given(env, name) for name in contract.FULL)
    if full and size is not None and (size > place.size or place.size == 1):
        why = f"RANK and WORLD_SIZE are set inside {place.launcher}"
        return contract.place(env, "environment", why)
    pairs = (
        ("RANK", place.rank_name, place.rank),
        ("WORLD_SIZE", place.size_name, place.size),
        ("LOCAL_RANK", f"{place.launcher}'s local rank", place.local_rank),
        ("NODE_RANK", f"{place.launcher}'s node number", place.node_rank),
    )
    for name, other, value in pairs:
        told = number(env, name)
        if told is not None and told != value and (name != "NODE_RANK" or place.launcher == "srun"):
            raise _contradiction(name, told, other, value, place)
    return place


def _contradiction(name: str, told: int, other: str, value: int, place: DetectedRank) -> WorldError:
    names = {"LOCAL_RANK": "SLURM_LOCALID", "NODE_RANK": "SLURM_NODEID"}
    if place.launcher == "srun":
        other = names.get(name, other)
    advice = (
        f"A batch script that exports {name} gives every task the same value: remove that line."
        if name != "WORLD_SIZE"
        else f"Remove the export, or start {told} processes ({place.launcher} started {value})."
    )
    return WorldError(
        f"{name}={told}, but {other}={value}. Found: {place.reason}.\n{advice}\n"
        "To overrule: ALLRANKS_WORLD=rank=…,world_size=… or ALLRANKS_WORLD=single."
    )


def _complete(env: Env, place: DetectedRank) -> World:
    """Add the address, the port and the host."""
    stated = place.launcher == "override"
    address, port = place.master_addr, place.master_port
    if not stated or address is None:
        address = env.get("MASTER_ADDR", "").strip() or address
    if not stated or port is None:
        port = number(env, "MASTER_PORT") or port
    if port is not None and not 0 < port < 65536:
        raise WorldError(f"MASTER_PORT={port} is not a port. Choose one between 1024 and 65535.")
    if address is None and place.nodes == 1:
        address = "127.0.0.1"
    derived = derived_port(launch_id(env))
    # An agent between srun and us passes the derived port on: nobody has tried it yet.
    given_port = port is not None and (port != derived or given(env, "TORCHELASTIC_RUN_ID"))
    return World(
        rank=place.rank,
        size=place.size,
        local_rank=place.local_rank,
        local_size=place.local_size,
        node_rank=place.node_rank,
        nodes=place.nodes,
        master_addr=address,
        master_port=port or derived,
        host=env.get("SLURMD_NODENAME") or socket.gethostname(),
        launcher=place.launcher,
        reason=place.reason,
        visible_devices=visible_devices(env),
        # What one task may see, the ranks that it started share.
        private_devices=private_devices(env) and place.launcher != "spawn",
        port_is_given=bool(given_port),
    )
