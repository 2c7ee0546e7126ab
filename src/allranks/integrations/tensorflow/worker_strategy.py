"""``strategy()``: MultiWorkerMirroredStrategy with one worker per process."""

from __future__ import annotations

import importlib
import sys
import warnings
from typing import Any

from allranks.errors import MissingDependencyError, UsageError, WorldError, did_you_mean
from allranks.integrations.tensorflow.cluster import configure
from allranks.runtime.world import World, world

COMMUNICATION = ("auto", "nccl", "ring")
_MEETING_SECONDS = 300.0
_made: Any = None


def strategy(
    communication: str = "auto", *, timeout: float | None = None, repair_keras: bool = True
) -> Any:
    """The ``tf.distribute`` strategy for this process, whatever started it.

    Several processes give a MultiWorkerMirroredStrategy: each is a worker, on the CPU or on its own
    GPUs. One process gives a MirroredStrategy over the GPUs that it sees, or the CPU: the same
    script runs alone, and no collective has to be set up before everything else.
    A second call returns the same strategy.

    ``communication`` is ``nccl``, ``ring`` or TensorFlow's own choice. ``timeout`` (seconds) bounds
    the meeting of the workers and every collective. ``repair_keras`` False leaves Keras 3 alone.
    """
    global _made
    if communication not in COMMUNICATION:
        hint = did_you_mean(communication, COMMUNICATION, " Use auto, nccl or ring.")
        raise UsageError(f"Communication '{communication}' is not known.{hint}")
    if _made is None:
        tf, here = tensorflow(), world()
        if here.size == 1:
            _made = tf.distribute.MirroredStrategy()
        else:
            _made = _multi_worker(tf, here, communication, timeout)
            if repair_keras:
                from allranks.integrations.tensorflow.keras_repairs import repair

                repair(tf, tell=here.is_main)
    return _made


def tensorflow() -> Any:
    """The tensorflow package."""
    try:
        return importlib.import_module("tensorflow")
    except ImportError:
        raise MissingDependencyError(
            "allranks.tensorflow needs TensorFlow. Install it with: pip install tensorflow"
        ) from None


def own_gpus(here: World, count: int) -> range | None:
    """Which of the ``count`` GPUs that TensorFlow sees are this worker's; None for all of them."""
    if count == 0 or here.local_size == 1 or here.private_devices:
        return None
    each = count // here.local_size
    if each == 0:
        raise WorldError(
            f"{here.local_size} workers on {here.host}, but {count} GPU{'s' * (count > 1)} visible. "
            f"Start {count} per node, or set CUDA_VISIBLE_DEVICES= (empty) to train on the CPUs."
        )
    return range(here.local_rank * each, (here.local_rank + 1) * each)


def why_too_late(context: Any) -> str:
    """What TensorFlow has done already that must come after the strategy; empty when nothing."""
    if getattr(context, "_collective_leader", None) is not None:
        return "another multi-worker strategy was made before"
    if getattr(context, "_context_handle", None) is not None:
        return "TensorFlow has started its devices: something made a tensor, a model or a dataset"
    return ""


def _multi_worker(tf: Any, here: World, communication: str, timeout: float | None) -> Any:
    eager = importlib.import_module("tensorflow.python.eager.context")
    if why := why_too_late(eager.context()):
        raise _too_late(why)
    gpus = tf.config.list_physical_devices("GPU")
    mine = own_gpus(here, len(gpus))
    if mine is not None:
        tf.config.set_visible_devices([gpus[index] for index in mine], "GPU")
    configure(here, timeout or _MEETING_SECONDS)
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
