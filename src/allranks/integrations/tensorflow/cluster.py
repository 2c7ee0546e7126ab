"""Set up TF_CONFIG: as it was given, or made by all workers together."""

from __future__ import annotations

import json
import os
from collections.abc import MutableMapping
from typing import Any

from allranks.errors import WorldError
from allranks.runtime.world.detection import launch_id
from allranks.runtime.world.endpoints import split_endpoint
from allranks.runtime.world.model import World
from allranks.runtime.world.worker_discovery import discover_workers, is_free, tf_config

_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")


def configure(world: World, seconds: float, env: MutableMapping[str, str] = os.environ) -> None:
    """Set TF_CONFIG for this worker, unless it is set already."""
    if not env.get("TF_CONFIG", "").strip():
        workers = discover_workers(world, launch_id(env), seconds)
        env["TF_CONFIG"] = tf_config(workers, world.rank)
    config: dict[str, Any] = json.loads(env["TF_CONFIG"])
    _check_port(config, world)
    _bypass_proxies(config, env)


def _check_port(config: dict[str, Any], world: World) -> None:
    """Refuse a port that is in use: TensorFlow would share it with another job's server."""
    task = config["task"]
    endpoint = config["cluster"][task["type"]][int(task["index"])]
    port = split_endpoint(endpoint)[1]
    if port is not None and not is_free(port):
        raise WorldError(
            f"Worker {world.rank} has to listen at {endpoint} (TF_CONFIG), but another program on "
            f"{world.host} uses port {port}.\n"
            "Unset TF_CONFIG, and the workers agree on free ports; or choose others "
            "(allranks submit --port N)."
        )


def _bypass_proxies(config: dict[str, Any], env: MutableMapping[str, str]) -> None:
    """Exclude the workers from the site's web proxy, which gRPC would use to reach other nodes."""
    if not any(env.get(name) for name in _PROXIES):
        return
    hosts = [
        split_endpoint(endpoint)[0] for group in config["cluster"].values() for endpoint in group
    ]
    already = env.get("no_grpc_proxy") or env.get("no_proxy") or ""
    env["no_grpc_proxy"] = ",".join(filter(None, [already, *dict.fromkeys(hosts)]))
