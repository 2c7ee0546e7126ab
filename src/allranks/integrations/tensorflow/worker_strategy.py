"""``strategy()``: MultiWorkerMirroredStrategy with one worker per process, and its TF_CONFIG."""

from __future__ import annotations

import importlib
import json
import os
import sys
import warnings
from collections.abc import MutableMapping
from typing import Any

from allranks.errors import MissingDependencyError, UsageError, WorldError, did_you_mean
from allranks.integrations.tensorflow import keras_repairs
from allranks.runtime.world import World, world
from allranks.runtime.world.detection import launch_id
from allranks.runtime.world.endpoints import split_endpoint
from allranks.runtime.world.tf_config import discover_workers, is_free, tf_config

COMMUNICATION = ("auto", "nccl", "ring")
_RENDEZVOUS_SECONDS = 300.0
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
_made: Any = None


def strategy(
    communication: str = "auto", *, timeout: float | None = None, repair_keras: bool = True
) -> Any:
    """Return the ``tf.distribute`` strategy for this process, whatever started it.

    Several processes give a MultiWorkerMirroredStrategy: each is a worker, on the CPU or on its own
    GPUs. One process gives a MirroredStrategy over the GPUs that it sees, or the CPU: the same
    script runs alone, and no collective has to be set up before everything else.
    A second call returns the same strategy.

    ``communication`` is ``nccl``, ``ring`` or TensorFlow's own choice. ``timeout`` (seconds) bounds
    the rendezvous of the workers and every collective. ``repair_keras`` False leaves Keras 3 alone.
    """
    global _made
    if communication not in COMMUNICATION:
        hint = did_you_mean(communication, COMMUNICATION, " Use auto, nccl or ring.")
        raise UsageError(f"Communication '{communication}' is not known.{hint}")
    if _made is None:
        tf, here = import_tensorflow(), world()
        if here.size == 1:
            _made = tf.distribute.MirroredStrategy()
        else:
            _made = _multi_worker(tf, here, communication, timeout)
            if repair_keras:
                keras_repairs.repair_keras(tf, report=here.is_main)
    return _made


def import_tensorflow() -> Any:
    """Import and return the tensorflow package."""
    try:
        return importlib.import_module("tensorflow")
    except ImportError:
        raise MissingDependencyError(
            "allranks.tensorflow needs TensorFlow. Install it with: pip install tensorflow"
        ) from None


def own_gpus(here: World, count: int) -> range | None:
    """Return which of the ``count`` visible GPUs are this worker's; None for all of them."""
    if count == 0 or here.local_size == 1 or here.private_devices:
        return None
    each = count // here.local_size
    if each == 0:
        raise WorldError(
            f"{here.local_size} workers on {here.host}, but {count} GPU{'s' * (count > 1)} visible. "
            f"Start {count} per node, or set CUDA_VISIBLE_DEVICES= (empty) to train on the CPUs."
        )
    return range(here.local_rank * each, (here.local_rank + 1) * each)


def too_late_reason(context: Any) -> str:
    """Return what TensorFlow has done already that must come after the strategy; empty when nothing."""
    if getattr(context, "_collective_leader", None) is not None:
        return "another multi-worker strategy was made before"
    if getattr(context, "_context_handle", None) is not None:
        return "TensorFlow has started its devices: something made a tensor, a model or a dataset"
    return ""


def _multi_worker(tf: Any, here: World, communication: str, timeout: float | None) -> Any:
    eager = importlib.import_module("tensorflow.python.eager.context")
    if why := too_late_reason(eager.context()):
        raise _too_late(why)
    gpus = tf.config.list_physical_devices("GPU")
    mine = own_gpus(here, len(gpus))
    if mine is not None:
        tf.config.set_visible_devices([gpus[index] for index in mine], "GPU")
    set_tf_config(here, timeout or _RENDEZVOUS_SECONDS)
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=_implementation(tf, communication, bool(gpus), here), timeout_seconds=timeout
    )
    try:
        return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    except RuntimeError as error:
        if "program startup" in str(error):
            raise _too_late(str(error)) from None
        raise


def _implementation(tf: Any, communication: str, gpu: bool, here: World) -> Any:
    kinds = tf.distribute.experimental.CommunicationImplementation
    if communication == "nccl" and not gpu:
        if here.is_main:
            warnings.warn(
                "Communication 'nccl' needs GPUs, and there are none: using ring.", stacklevel=4
            )
        return kinds.RING
    return getattr(kinds, communication.upper())


def _too_late(why: str) -> UsageError:
    script = sys.argv[0] or "the script"
    return UsageError(
        f"allranks.tensorflow.strategy() was called too late in {script}: {why}.\n"
        "Workers must be connected before TensorFlow does anything else. Move the call to the top, "
        "right below the imports;\nwhat needs TensorFlow at import time (tensors, models, datasets, "
        "tf.config.list_logical_devices, random seeds with tensors) comes after it."
    )


def set_tf_config(world: World, seconds: float, env: MutableMapping[str, str] = os.environ) -> None:
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
