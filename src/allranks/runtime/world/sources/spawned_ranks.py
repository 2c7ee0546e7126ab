"""Ranks that a script started itself: `allranks.runtime.agent.spawn` sets their variables.

The mark makes them the innermost word, since a rank inherits the variables of the srun task, or of
the agent, that its caller runs in.
"""

from __future__ import annotations

from allranks.runtime.world.env_variables import Env, given, required
from allranks.runtime.world.model import DetectedRank

NAME = "ALLRANKS_SPAWNED"


def read(env: Env) -> DetectedRank | None:
    """The place of a rank that carries the mark; nodes hold equally many of them."""
    if not given(env, NAME) or not given(env, "RANK"):
        return None
    rank, size = required(env, "RANK"), required(env, "WORLD_SIZE")
    local_size = required(env, "LOCAL_WORLD_SIZE")
    return DetectedRank(
        rank=rank,
        size=size,
        local_rank=required(env, "LOCAL_RANK"),
        local_size=local_size,
        node_rank=required(env, "NODE_RANK"),
        nodes=-(-size // max(local_size, 1)),
        launcher="spawn",
        reason=f"spawn (the script asked for nprocs={size}, rank {rank} of {size})",
    )
