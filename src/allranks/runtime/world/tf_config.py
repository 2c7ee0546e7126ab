"""TF_CONFIG: the addresses of all TensorFlow workers, found by a rendezvous.

Every worker takes a free port of its own machine and learns those of the others. So no port is guessed on
a machine that one cannot see, no list of hosts is needed, and what stands in TF_CONFIG was free a moment
before.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace

from allranks.errors import WorldError
from allranks.runtime.world.endpoints import (
    candidate_ports,
    derived_port,
    format_endpoint,
    listen,
    route_address,
)
from allranks.runtime.world.model import World
from allranks.runtime.world.rendezvous import Rendezvous, make_token


def discover_workers(world: World, launch: str, seconds: float) -> list[str]:
    """Return ``host:port`` of every worker, by rank; each process calls it for itself."""
    return _exchange(world, launch, seconds, workers=1, member="worker")


def discover_workers_of_nodes(world: World, launch: str, seconds: float) -> list[str]:
    """Return ``host:port`` of every worker, by rank; one process per node calls it for its ranks."""
    node = replace(world, rank=world.node_rank, size=world.nodes, local_rank=0, local_size=1)
    return _exchange(node, f"{launch}/nodes", seconds, workers=world.local_size, member="node")


def tf_config(workers: list[str], rank: int) -> str:
    """Return TF_CONFIG for one worker of ``host:port`` each."""
    task = {"type": "worker", "index": rank}
    return json.dumps({"cluster": {"worker": workers}, "task": task})


def _exchange(world: World, launch: str, seconds: float, workers: int, member: str) -> list[str]:
    address, port = world.endpoint()
    # On one machine two launches may share all but their port.
    token = make_token("tensorflow", launch, world.size, f"{address}:{port}")
    rendezvous = Rendezvous(
        rank=world.rank,
        size=world.size,
        host=world.host,
        address="127.0.0.1" if world.nodes == 1 else address,
        first_port=derived_port(token),
        token=token,
        seconds=seconds,
        member=member,
        advice="Every process must call allranks.tensorflow.strategy(). ",
    )
    start, host = derived_port(f"{token}/{world.rank}"), worker_host(world)
    with ExitStack() as held:
        ports = [held.enter_context(reserve_port(start, world)) for _ in range(workers)]
        values = rendezvous.exchange(",".join(format_endpoint(host, each) for each in ports))
    return [endpoint for value in values for endpoint in value.split(",")]


def worker_host(world: World) -> str:
    """Return the address by which the other workers reach this node."""
    address = world.endpoint()[0]
    if world.nodes == 1:
        return "127.0.0.1"
    return address if world.node_rank == 0 else route_address(address)[0]


@contextmanager
def reserve_port(start: int, world: World) -> Iterator[int]:
    """Hold a free port until the block ends, so that no other worker of this node takes it."""
    ports = candidate_ports(start, 64)
    for port in ports:
        try:
            holder = listen(port)
        except OSError:
            continue
        with closing(holder):
            yield port
        return
    raise WorldError(
        f"No free port for worker {world.rank} on {world.host}: {len(ports)} tried, from {start} on."
    )


def is_free(port: int) -> bool:
    """Whether a server could listen on this port of all addresses."""
    try:
        listen(port).close()
    except OSError:
        return False
    return True
