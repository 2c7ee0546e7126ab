"""Small agreements between ranks, over gloo: they never wait for a GPU."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from allranks.errors import WorldError

_made: tuple[Any, Any] | None = None


def connected(size: int) -> bool:
    """Whether there are other ranks and a process group to reach them."""
    return size > 1 and dist.is_available() and dist.is_initialized()


def gloo_group() -> Any:
    """The default group when it is gloo or MPI, otherwise one gloo group for this room, made once.

    All ranks must come here together the first time.
    """
    global _made
    world = dist.group.WORLD
    if dist.get_backend() in ("gloo", "mpi"):
        return world
    own = _made[1]() if _made is not None and _made[0]() is world else None
    if own is None:
        own = dist.new_group(backend="gloo")
        # Weak, so that the end of the group is the end of its threads.
        _made = (weakref.ref(world), weakref.ref(own))
    return own


def gathered(value: Any, size: int) -> list[Any]:
    """``value`` of every rank, by rank. Alone: the own one."""
    if size == 1:
        return [value]
    if not connected(size):
        raise WorldError(
            f"This needs the other {size - 1} ranks, but torch.distributed is not initialised. "
            "Call allranks.init() first."
        )
    found: list[Any] = [None] * size
    dist.all_gather_object(found, value, group=gloo_group())
    return found


class Sum:
    """A sum over ranks that is under way while the step computes."""

    def __init__(self, values: Sequence[int]) -> None:
        self._values = torch.tensor(values, dtype=torch.int64)
        self._work = dist.all_reduce(self._values, group=gloo_group(), async_op=True)

    def wait(self) -> list[int]:
        """The sums, once all ranks have given theirs."""
        self._work.wait()
        return list(self._values.tolist())
