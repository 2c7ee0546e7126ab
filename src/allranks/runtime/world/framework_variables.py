"""The variables that TensorFlow and Horovod want beside the contract's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from allranks.errors import UsageError, WorldError
from allranks.runtime.world.model import World
from allranks.runtime.world.rendezvous import FIRST_PORT, LAST_PORT, derived_port, format_endpoint


def framework_variables(
    world: World, framework: str, hosts: Sequence[str], *, port: int | None = None
) -> dict[str, str]:
    """TF_CONFIG for ``tensorflow``, HOROVOD_* (gloo) for ``horovod``, nothing for torch or "".

    ``hosts`` holds one name per node in node order, or one per rank where nodes differ in their
    number of ranks or ranks go round the nodes. ``port`` is TensorFlow's first port on each node
    (behind the master port when left out, since torch may be there), or that of Horovod's
    rendezvous server (the master port when left out).
    """
    if framework in ("", "torch"):
        return {}
    if framework == "tensorflow":
        first = _first_port(world) if port is None else port
        workers = _endpoints(_host_per_rank(world, hosts), first)
        return {"TF_CONFIG": tf_config(workers, world.rank)}
    if framework == "horovod":
        from allranks.runtime.world.horovod_world import gloo_variables

        number = port if port is not None else world.endpoint()[1]
        named = replace(world, host=_host_per_rank(world, hosts)[world.rank])
        return gloo_variables(named, world.endpoint()[0], number)
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


def tf_config(workers: list[str], rank: int) -> str:
    """TF_CONFIG for one worker of ``host:port`` each."""
    task = {"type": "worker", "index": rank}
    return json.dumps({"cluster": {"worker": workers}, "task": task})


def _endpoints(hosts: list[str], port: int) -> list[str]:
    """One worker per rank; each takes the next port of its host."""
    seen: dict[str, int] = {}
    workers = []
    for host in hosts:
        workers.append(format_endpoint(host, port + seen.get(host, 0)))
        seen[host] = seen.get(host, 0) + 1
    return workers


def _first_port(world: World) -> int:
    """The port behind the master port; in our range where that one is torchrun's, out of it."""
    port = world.endpoint()[1] + 1
    fits = port >= FIRST_PORT and port + world.local_size <= LAST_PORT
    return port if fits else derived_port(f"tensorflow/{port}")
