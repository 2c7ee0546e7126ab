"""The view of a run that top, web, report and the exporters show: ``view_run(RunSource(run))``."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from allranks.core.formatting import clean
from allranks.core.python_imports import scan
from allranks.observe.view.array_tasks import task_status
from allranks.observe.view.metric_columns import INDEX_COLUMNS, MetricColumns
from allranks.observe.view.model import RunView
from allranks.observe.view.node_views import nodes_now, ranks_now
from allranks.observe.view.run_source import RunSource
from allranks.observe.view.step_phases import mean_phases
from allranks.observe.view.training_progress import training_progress
from allranks.runs.atomic_files import is_there, read_json
from allranks.runs.attempt import Failure
from allranks.runs.attempt_history import attempt_history, goodput
from allranks.runs.log_lines import LogLine, read_logs
from allranks.runs.run_folder import Run
from allranks.runs.run_records import plan_values
from allranks.schedulers import run_statuses
from allranks.schedulers.run_state import RunStatus

_TRAINER_NAMES = frozenset({"allranks.Trainer", "allranks.TrainConfig", "allranks.train"})


def has_trainer(run: Run) -> bool:
    """Return whether a Trainer has started or the script imports it; False when unknown."""
    if is_there(run.path / "training.json"):
        return True
    return is_there(run.path / "plan.json") and _imports_trainer(run.path, run.cwd)


@lru_cache(maxsize=256)
def _imports_trainer(run: Path, cwd: str) -> bool:
    named = plan_values(read_json(run / "plan.json")).get("script", "")
    script = _kept(run, Path(os.path.normpath(run / cwd / named)))
    modules = scan(script).modules if script.is_file() else frozenset()
    ours = {name for name in modules if name.startswith("allranks.")}
    return bool(modules & _TRAINER_NAMES) or ("allranks" in modules and not ours)


def _kept(run: Path, script: Path) -> Path:
    """Return the run's own copy of the script, if any: the original may have changed."""
    root = read_json(run / "code.json").get("root")
    if not isinstance(root, str) or not script.is_relative_to(root):
        return script
    copy = run / "code" / script.relative_to(root)
    return copy if copy.is_file() else script


_WINDOWS = 20
"""Number of the last windows over which phases are averaged."""
_LINES = 5
_LONGEST = 2000
"""Characters of a log line that are kept."""


def view_run(source: RunSource, status: RunStatus | None = None) -> RunView:
    """Return the run as of the last refresh of its source; its state is queried unless given.

    Whatever the run has not (metrics, nodes, GPUs, attempts) is empty, never an error. Of a job array
    it is one task that is looked at, the one that the source follows.
    """
    now = time.time()
    status = status or run_statuses([source.run])[0]
    source.run_attempts.update_status(status)
    attempts = [each.attempt for each in source.attempts.values()]
    if source.task:
        status = task_status(status, source.task, attempts)
    last = source.last
    nodes = nodes_now(last) if last else []
    entries = attempt_history(attempts, status.is_running)
    error = last.attempt.first_failure() if last else None
    return RunView(
        status=status,
        progress=training_progress(source, status, now),
        values=_values(source),
        loss=source.train.curve("train_loss"),
        val_loss=source.val.curve("val_loss"),
        phases=mean_phases(source, _WINDOWS),
        nodes=nodes,
        ranks=ranks_now(last, nodes) if last else [],
        attempts=entries,
        goodput=goodput(entries) if entries else None,
        error=error,
        last_lines=_last_lines(source, error),
        time=now,
        trainer=len(source.train) > 0 or has_trainer(source.run),
        task=source.task or "",
        failed_tasks=source.run_attempts.failed_tasks(),
        running_tasks=source.run_attempts.running_tasks(),
    )


def _values(source: RunSource) -> dict[str, float]:
    """Return the latest value of each metric; NaN where it was not finite."""
    found: dict[str, float] = {}
    for kind in ("test", "val", "epoch", "train"):
        columns: MetricColumns = getattr(source, kind)
        for name in columns.names:
            value = columns.last(name)
            if name not in INDEX_COLUMNS and value is not None:
                found[name] = value
        found.update(dict.fromkeys(source.nonfinite.get(kind, ()), float("nan")))
    return found


def _last_lines(source: RunSource, error: Failure | None) -> list[str]:
    """Return the last lines of the rank that failed first, else of rank 0, else of Slurm's output."""
    last = source.last
    if last is None or not last.attempt.log_files():
        return _shown(read_logs(source.run, tail=_LINES))
    rank = error.rank if error else 0
    return _shown(read_logs(source.run, ranks=[rank], tail=_LINES, attempt=last.number))


def _shown(lines: Iterable[LogLine]) -> list[str]:
    return [clean(line.text[:_LONGEST]) for line in lines]
