"""The node is sampled from a thread beside the event loop, which it must not hold up."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from allranks.runtime.agent.placement import Place

if TYPE_CHECKING:
    from allranks.runtime.telemetry.sampler import Sampler


def sample_node(
    folder: Path | None, places: list[Place], say: Callable[[str], None]
) -> Sampler | None:
    """Of the node on which an agent has started ``places``; None where nobody is to know.

    To be called when the ranks have been forked: a process with threads must not fork.
    """
    if folder is None:
        return None
    from allranks.runtime.telemetry.sampler import start_sampler

    first = places[0]
    return start_sampler(
        folder, first.node_rank, first.local_rank, first.local_size, os.getpid(),
        lambda text: say(f"allranks: {text}"),
        alone=len(places) == first.local_size,
    )  # fmt: skip
