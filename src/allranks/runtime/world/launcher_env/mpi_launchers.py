"""mpirun and mpiexec: Open MPI 4 and 5, MPICH, Intel MPI.

Inside Slurm these start their daemons with srun, so SLURM_PROCID there is the daemon's, not the
rank's. None of them sets an address, and none reports the node's number: OMPI_COMM_WORLD_NODE_RANK
is the rank on the node, despite its name.
"""

from __future__ import annotations

from dataclasses import dataclass

from allranks.errors import WorldError
from allranks.runtime.world.env_variables import (
    Env,
    first_set,
    parse_variable,
    read_int,
    require_int,
)
from allranks.runtime.world.hostlist import expand_hostlist
from allranks.runtime.world.model import DetectedRank


@dataclass(frozen=True)
class _Names:
    launcher: str
    signs: tuple[str, ...]
    """One of these is set by this launcher alone (srun --mpi=pmi2 sets PMI_RANK, too)."""
    rank: str
    size: str
    local_rank: tuple[str, ...]
    local_size: tuple[str, ...]


_HYDRA = ("PMI_RANK", "PMI_SIZE", ("MPI_LOCALRANKID",), ("MPI_LOCALNRANKS",))
_TABLE = (
    _Names(
        "openmpi",
        ("OMPI_COMM_WORLD_RANK",),
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        ("OMPI_COMM_WORLD_LOCAL_RANK",),
        ("OMPI_COMM_WORLD_LOCAL_SIZE",),
    ),
    _Names("intel-mpi", ("I_MPI_HYDRA_UUID", "I_MPI_MPIRUN"), *_HYDRA),
    _Names("mpich", ("MPI_LOCALRANKID", "HYDI_CONTROL_FD"), *_HYDRA),
)


def read(env: Env) -> DetectedRank | None:
    """Read a rank of mpirun, by the first family whose variables are set."""
    for names in _TABLE:
        if first_set(env, *names.signs) and first_set(env, names.rank):
            return _read_family(env, names)
    return None


def _read_family(env: Env, names: _Names) -> DetectedRank:
    rank, size = require_int(env, names.rank), require_int(env, names.size)
    local_rank = require_int(env, *names.local_rank)
    local_size = require_int(env, *names.local_size)
    nodes = _nodes(env, size, local_size)
    return DetectedRank(
        rank=rank,
        size=size,
        local_rank=local_rank,
        local_size=local_size,
        node_rank=_node_rank(env, rank, local_rank, local_size, nodes),
        nodes=nodes,
        launcher=names.launcher,
        reason=f"{names.launcher} ({names.rank}={rank}, {names.size}={size})",
        master_addr=_first_host(env, rank, nodes) if not first_set(env, "MASTER_ADDR") else None,
        rank_name=names.rank,
        size_name=names.size,
    )


def _hosts(env: Env) -> list[str]:
    """Return the allocation's nodes under Slurm, else nothing."""
    return (
        parse_variable(env, "SLURM_JOB_NODELIST", expand_hostlist)
        if env.get("SLURM_JOB_NODELIST")
        else []
    )


def _nodes(env: Env, size: int, local_size: int) -> int:
    """Return the nodes that hold ranks; an estimate where nodes are uneven and not listed."""
    if local_size >= size:
        return 1
    known = read_int(env, "OMPI_MCA_orte_num_nodes") or len(_hosts(env))
    return min(known, size) if known > 1 else -(-size // local_size)


def _node_rank(env: Env, rank: int, local_rank: int, local_size: int, nodes: int) -> int:
    """Return the node's position in the allocation, else as if ranks fill node after node."""
    hosts, here = _hosts(env), env.get("SLURMD_NODENAME")
    if nodes > 1 and len(hosts) == nodes and here in hosts:
        return hosts.index(here)
    return min((rank - local_rank) // local_size, nodes - 1) if rank >= local_rank else 0


def _first_host(env: Env, rank: int, nodes: int) -> str | None:
    """Return the allocation's first node, as long as rank 0 runs on it.

    ``--host``, ``--rankfile`` and some mappings put rank 0 elsewhere: the others cannot see that,
    so rank 0 raises the error.
    """
    hosts = _hosts(env)
    if nodes == 1 or not hosts:
        return None
    here = env.get("SLURMD_NODENAME", hosts[0])
    if rank == 0 and here != hosts[0]:
        raise WorldError(
            f"mpirun put rank 0 on {here}, but the first node of SLURM_JOB_NODELIST="
            f"{env['SLURM_JOB_NODELIST']} is {hosts[0]}, where the other ranks try to reach it.\n"
            f"Name the host for all ranks: mpirun -x MASTER_ADDR={here} … (MPICH: -genv "
            f"MASTER_ADDR {here})."
        )
    return hosts[0]
