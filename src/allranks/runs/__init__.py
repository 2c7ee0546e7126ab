"""The run folder: create, find and read it. Its files: ``docs/contracts/run-folder.md``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from allranks.core.lazy_attributes import names_from

if TYPE_CHECKING:
    from allranks.runs.attempt import Attempt as Attempt
    from allranks.runs.attempt import Failure as Failure
    from allranks.runs.attempt import Rank as Rank
    from allranks.runs.run_folder import Run as Run
    from allranks.runs.run_lookup import find_run as find_run
    from allranks.runs.run_lookup import list_runs as list_runs
    from allranks.runs.run_lookup import runs_root as runs_root

_HOMES = {
    "Attempt": "attempt",
    "Failure": "attempt",
    "Rank": "attempt",
    "Run": "run_folder",
    "find_run": "run_lookup",
    "list_runs": "run_lookup",
    "runs_root": "run_lookup",
}

__all__ = [*_HOMES]
__getattr__ = names_from(__name__, _HOMES)
