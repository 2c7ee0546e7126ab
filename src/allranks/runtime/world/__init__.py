"""Which process am I, and how do I reach the others? torch is imported inside `init` only.

Names are loaded when they are used: the agent starts once per rank and needs a few of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from allranks.core.lazy_attributes import names_from

if TYPE_CHECKING:
    from allranks.runtime.world.model import World as World
    from allranks.runtime.world.process_group import init as init
    from allranks.runtime.world.process_group import shutdown as shutdown
    from allranks.runtime.world.process_group import world as world

_HOMES = {
    "World": "model",
    "init": "process_group",
    "shutdown": "process_group",
    "world": "process_group",
}

__all__ = [*_HOMES]
__getattr__ = names_from(__name__, _HOMES)
