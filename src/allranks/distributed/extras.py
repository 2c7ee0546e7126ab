"""The variables that TensorFlow and Horovod want beside the contract's."""

from __future__ import annotations

import json
from collections.abc import Sequence

from allranks.distributed.model import World
from allranks.distributed.rendezvous import format_endpoint
from allranks.errors import UsageError, WorldError


def framework_variables(
    world: World, framework: str, hosts: Sequence[str], *, port: int | None = None
) -> dict[str, str]:
    """TF_CONFIG for ``tensorflow``, HOROVOD_* (gloo) for ``horovod``, nothing for torch or "".

    ``hosts`` holds one name per node in node order, or one per rank where nodes differ in their
    number of ranks or ranks go round the nodes. ``port`` is TensorFlow's first port on each node,
    or that of Horovod's rendezvous server; the master port when left out.
    """
    if framework in ("", "torch"):
        return {}
    number = port if port is not None else world.endpoint()[1]
    if framework == "tensorflow":
        return {"TF_CONFIG": _tf_config(world, _host_per_rank(world, hosts), number)}
    if framework == "horovod":
        return _horovod(world, _host_per_rank(world, hosts), number)
    raise UsageError(f"Framework '{framework}' is not known. Use torch, tensorflow or horovod.")


def _host_per_rank(world: World, hosts: Sequence[str]) -> list[str]:
    if len(hosts) == world.size:
        return list(hosts)
    if len(hosts) == world.nodes and world.nodes * world.local_size == world.size:
        return [host for host in hosts for _ in range(world.local_size)]
    raise WorldError(
        f"{len(hosts)} hosts for {world.size} ranks on {world.nodes} nodes, {world.local_size} "
        "of them on "
        f"this node: give one host per node where all hold as many ranks, else one per rank."
    )


def _tf_config(world: World, hosts: list[str], port: int) -> str:
    """One worker per rank; each takes the next port of its host."""
    seen: dict[str, int] = {}
    workers = []
    for host in hosts:
        workers.append(format_endpoint(host, port + seen.get(host, 0)))
        seen[host] = seen.get(host, 0) + 1
    task = {"type": "worker", "index": world.rank}
    return json.dumps({"cluster": {"worker": workers}, "task": task})


def _horovod(world: World, hosts: list[str], port: int) -> dict[str, str]:
    """What horovodrun sets for gloo. The server at that address is the launcher's to start."""
    values = {
        "RANK": world.rank,
        "SIZE": world.size,
        "LOCAL_RANK": world.local_rank,
        "LOCAL_SIZE": world.local_size,
        "CROSS_RANK": world.node_rank,
        "CROSS_SIZE": world.nodes,
        "HOSTNAME": hosts[world.rank],
        "GLOO_RENDEZVOUS_ADDR": world.endpoint()[0],
        "GLOO_RENDEZVOUS_PORT": port,
        "CONTROLLER": "gloo",
        "CPU_OPERATIONS": "gloo",
    }
    return {f"HOROVOD_{name}": str(value) for name, value in values.items()}
