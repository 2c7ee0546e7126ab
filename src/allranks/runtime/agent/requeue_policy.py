"""How often a run may go on by itself."""

from __future__ import annotations

from typing import NamedTuple


class Policy(NamedTuple):
    """What a job script hands over as ``--requeue --max-attempts N …``."""

    requeue: bool = False
    """It may go on in another job, or another life of the same one."""
    max_attempts: int = 100
    """Attempts in all, restarts in place included."""
    max_no_progress: int = 3
    """Attempts in a row without a newer checkpoint after which it stops."""
    restarts: int = 0
    """How often crashed ranks are started again in the same allocation."""
