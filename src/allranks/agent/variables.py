"""The environment of a rank."""

from __future__ import annotations

import os
from collections.abc import Mapping

from allranks.agent.placement import Place

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
    if framework in ("tensorflow", "horovod"):
        from allranks.distributed import World, framework_variables

        env.update(framework_variables(World(**place._asdict()), framework, hosts(place, env)))
    return env


def hosts(place: Place, env: Mapping[str, str]) -> list[str]:
    """The nodes of the step in their order, for the frameworks that want them all named."""
    if place.nodes == 1:
        return [place.master_addr or "127.0.0.1"]
    listed = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or ""
    from allranks.distributed.nodelist import expand

    return expand(listed)


def new_session() -> str:
    """An id for the processes of this launch on this machine."""
    return f"{os.getpid()}-{os.urandom(6).hex()}"
