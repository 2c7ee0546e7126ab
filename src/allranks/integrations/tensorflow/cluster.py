"""TF_CONFIG: as it was given, or made here by all workers together."""

from __future__ import annotations

import json
import os
from collections.abc import MutableMapping
from typing import Any

from allranks.errors import WorldError
from allranks.runtime.world.detection import launch_id
from allranks.runtime.world.endpoints import split_endpoint
from allranks.runtime.world.framework_variables import tf_config
from allranks.runtime.world.model import World
from allranks.runtime.world.worker_discovery import is_free, roll_call

_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")


def configure(world: World, seconds: float, env: MutableMapping[str, str] = os.environ) -> None:
    """Set TF_CONFIG for this worker; one that is there (ours or the user's) stays as it is."""
    if not env.get("TF_CONFIG", "").strip():
        workers = roll_call(world, launch_id(env), seconds)
        env["TF_CONFIG"] = tf_config(workers, world.rank)
    config: dict[str, Any] = json.loads(env["TF_CONFIG"])
    _check_port(config, world)
    _pass_by_proxies(config, env)


def _check_port(config: dict[str, Any], world: World) -> None:
    """TensorFlow's server may share a port with another job's, and each would hear the other."""
    task = config["task"]
    endpoint = config["cluster"][task["type"]][int(task["index"])]
    port = split_endpoint(endpoint)[1]
    if port is not None and not is_free(port):
        raise WorldError(
            f"Worker {world.rank} is to listen at {endpoint} (TF_CONFIG), but another program on "
            f"{world.host} has port {port}.\n"
            "Unset TF_CONFIG, and the workers agree on free ports; or choose others "
            "(allranks submit --port N)."
        )


def _pass_by_proxies(config: dict[str, Any], env: MutableMapping[str, str]) -> None:
    """gRPC would send what is meant for the next node through the site's web proxy."""
    if not any(env.get(name) for name in _PROXIES):
        return
    hosts = [
        split_endpoint(endpoint)[0] for group in config["cluster"].values() for endpoint in group
    ]
    already = env.get("no_grpc_proxy") or env.get("no_proxy") or ""
    env["no_grpc_proxy"] = ",".join(filter(None, [already, *dict.fromkeys(hosts)]))
