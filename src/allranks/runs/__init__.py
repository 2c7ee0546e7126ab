"""The run folder: made, found, read. See ``docs/architecture.md`` for what lies where."""

from allranks.runs.attempts import Attempt, Failure, Rank
from allranks.runs.folder import Run
from allranks.runs.index import find_run, list_runs, runs_root

__all__ = ["Attempt", "Failure", "Rank", "Run", "find_run", "list_runs", "runs_root"]
