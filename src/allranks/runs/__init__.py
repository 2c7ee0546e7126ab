"""The run folder: made, found, read. See ``docs/architecture.md`` for what lies where."""

from __future__ import annotations

from typing import TYPE_CHECKING

from allranks._lazy import names_from

if TYPE_CHECKING:
    from allranks.runs.attempts import Attempt as Attempt
    from allranks.runs.attempts import Failure as Failure
    from allranks.runs.attempts import Rank as Rank
    from allranks.runs.folder import Run as Run
    from allranks.runs.index import find_run as find_run
    from allranks.runs.index import list_runs as list_runs
    from allranks.runs.index import runs_root as runs_root

_HOMES = {
    "Attempt": "attempts",
    "Failure": "attempts",
    "Rank": "attempts",
    "Run": "folder",
    "find_run": "index",
    "list_runs": "index",
    "runs_root": "index",
}

__all__ = [*_HOMES]
__getattr__ = names_from(__name__, _HOMES)
