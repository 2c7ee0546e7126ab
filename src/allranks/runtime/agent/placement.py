"""Which ranks are mine, and where all ranks meet."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from allranks.errors import WorldError

# Slurm numbers real steps from 0; batch, extern and interactive steps have ids near 2**32.
_LAST_STEP = 4_294_967_200


class Place(NamedTuple):
    """One rank's place: `allranks.runtime.world.World` as far as the agent needs it.

    A copy, because the agent is the first thing that every node of a job does, and loading `world`
    would double the time in which it starts.
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
        """The contract's variables that say where a rank is."""
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
) -> list[Place]:
    """The ranks of this node, all nodes having as many."""
    nodes, node = _node(nnodes, node_rank, env)
    address, port = _meeting_point(nodes, env)
    host = env.get("SLURMD_NODENAME") or os.uname().nodename
    launcher = env.get("ALLRANKS_LAUNCHER") or "agent"
    return [
        Place(
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


def place_one(env: Mapping[str, str]) -> Place:
    """The rank that this process is, whatever started it."""
    from allranks.runtime.world.detection import detect

    world = detect(env)
    return Place(**{name: getattr(world, name) for name in Place._fields})


def _node(nnodes: int | None, node_rank: int | None, env: Mapping[str, str]) -> tuple[int, int]:
    step = in_step(env)
    if nnodes is None:
        nnodes = int(env.get("SLURM_STEP_NUM_NODES") or env.get("SLURM_NNODES") or 1) if step else 1
    if node_rank is None:
        node_rank = int(env.get("SLURM_NODEID") or 0) if step else 0
    if not 0 <= node_rank < nnodes:
        raise WorldError(
            f"Node {node_rank} of {nnodes} cannot be: nodes count from 0.\n"
            "Give --nnodes N and --node-rank K, or start the agent once per node with srun."
        )
    return nnodes, node_rank


def in_step(env: Mapping[str, str]) -> bool:
    """Whether this is a task of a real Slurm step."""
    # The batch script of a job sees SLURM_NODEID=0 and the size of the whole allocation as well,
    # but it runs on the first node alone. Only a real step runs on all of them.
    step = env.get("SLURM_STEP_ID") or env.get("SLURM_STEPID") or ""
    return step.isdigit() and int(step) < _LAST_STEP


def _meeting_point(nodes: int, env: Mapping[str, str]) -> tuple[str, int]:
    address, port = env.get("MASTER_ADDR", "").strip(), env.get("MASTER_PORT", "").strip()
    if port and not port.isdigit():
        raise WorldError(f"MASTER_PORT={port} is not a port number.")
    if nodes > 1 and not (address and port):
        missing = " and ".join(
            n for n, v in (("MASTER_ADDR", address), ("MASTER_PORT", port)) if not v
        )
        raise WorldError(
            f"{nodes} nodes, but {missing} is not set, so the ranks cannot meet.\n"
            "Export MASTER_ADDR (the first node) and MASTER_PORT (one for all) before the agent."
        )
    address = address or "127.0.0.1"
    return address, int(port) if port else _port(env)


def _port(env: Mapping[str, str]) -> int:
    from allranks.runtime.world.endpoints import derived_port, free_port

    # Two launches at one moment would both see the same first port free: each starts at its own.
    seed = env.get("SLURM_JOB_ID", "") + env.get("ALLRANKS_SESSION", "") + str(os.getpid())
    return free_port("127.0.0.1", derived_port(seed))
