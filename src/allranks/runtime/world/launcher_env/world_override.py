"""ALLRANKS_WORLD: set by the user, it overrides every detection.

ALLRANKS_WORLD=single
ALLRANKS_WORLD=rank=5,world_size=8,local_world_size=4,master_addr=node1,master_port=29500
"""

from __future__ import annotations

from allranks.errors import WorldError
from allranks.runtime.world.env_variables import Env
from allranks.runtime.world.model import DetectedRank

NAME = "ALLRANKS_WORLD"
_ALIASES = {"size": "world_size", "local_size": "local_world_size"}
_NUMBERS = (
    "rank",
    "world_size",
    "local_rank",
    "local_world_size",
    "node_rank",
    "nodes",
    "master_port",
)
_KEYS = (*_NUMBERS, "master_addr")


def read(env: Env) -> DetectedRank | None:
    """Read ALLRANKS_WORLD; what it leaves out is derived from the rest."""
    text = env.get(NAME, "").strip()
    if not text:
        return None
    if text == "single":
        return DetectedRank(0, 1, 0, 1, 0, 1, "override", f"override ({NAME}=single)")
    values = _values(text)
    missing = [key for key in ("rank", "world_size") if key not in values]
    if missing:
        raise WorldError(f"{NAME}={text} lacks {' and '.join(missing)}. {_usage()}")
    rank, size = _number(values, "rank", 0), _number(values, "world_size", 1)
    nodes = _number(values, "nodes", 0)
    local_size = _number(values, "local_world_size", size // nodes if nodes else size) or 1
    local_rank = _number(values, "local_rank", rank % local_size)
    return DetectedRank(
        rank=rank,
        size=size,
        local_rank=local_rank,
        local_size=local_size,
        node_rank=_number(values, "node_rank", (rank - local_rank) // local_size),
        nodes=nodes or -(-size // local_size),
        launcher="override",
        reason=f"override ({NAME}={text})",
        master_addr=values.get("master_addr"),
        master_port=_number(values, "master_port", 0) or None,
    )


def _values(text: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for part in filter(None, (word.strip() for word in text.split(","))):
        key, equals, value = part.partition("=")
        key = _ALIASES.get(key.strip(), key.strip())
        if key not in _KEYS or not equals:
            raise WorldError(f"{NAME}={text}: '{part}' is not understood. {_usage()}")
        values[key] = value.strip()
    return values


def _number(values: dict[str, str], key: str, default: int) -> int:
    try:
        return int(values.get(key, default))
    except ValueError:
        raise WorldError(f"{NAME}: {key}={values[key]} is not a number. {_usage()}") from None


def _usage() -> str:
    return f"Write {NAME}=single, or {NAME}=rank=0,world_size=2 with any of {', '.join(_KEYS[2:])}."
