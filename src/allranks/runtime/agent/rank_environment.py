"""The environment of a rank."""

from __future__ import annotations

import os
from collections.abc import Mapping

from allranks.errors import WorldError
from allranks.runtime.agent.placement import Place

SESSION = "ALLRANKS_SESSION"


def rank_environment(place: Place, base: Mapping[str, str], threads: int) -> dict[str, str]:
    """The contract's variables on top of ``base``; what the user set of the rest stays."""
    env = dict(base)
    env.update(place.environment())
    env.setdefault("OMP_NUM_THREADS", str(threads))
    # A rank that dies must not take its last lines along in a buffer.
    env.setdefault("PYTHONUNBUFFERED", "1")
    env.setdefault("ALLRANKS_LAUNCHER", place.launcher)
    framework = env.get("ALLRANKS_FRAMEWORK", "")
    if framework == "tensorflow":
        from allranks.runtime.agent.tensorflow_variables import tensorflow_variables

        env.update(tensorflow_variables(place, env))
    if framework == "horovod" or env.get("HOROVOD_GLOO_RENDEZVOUS_PORT"):
        from allranks.runtime.agent.tensorflow_variables import legacy_keras

        env.update(legacy_keras(env))
        env.update(horovod_variables(place, env))
    return env


def horovod_variables(place: Place, env: Mapping[str, str]) -> dict[str, str]:
    """Where a table is served, what its ranks must know. horovodrun has told its ranks already, and
    mpirun's ask MPI, if their Horovod can."""
    from allranks.runtime.world import horovod_init as horovod

    address, port = env.get(horovod.ADDRESS), env.get(horovod.PORT)
    if address and port and not horovod.is_configured(place, env):
        told = horovod.gloo_variables(place, address, int(port))
        return told | horovod.network_variables(address, env)
    if not port and (why := horovod.mpi_mismatch(env)):
        raise WorldError(
            f"{why}: each rank would train alone.\n"
            "Use --launcher horovod, or build it again with that MPI: allranks frameworks install horovod"
        )
    return {}


def new_session() -> str:
    """An id for the processes of this launch on this machine."""
    return f"{os.getpid()}-{os.urandom(6).hex()}"
