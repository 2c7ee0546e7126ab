"""The view of a run that top, web, report and the exporters show: ``view_run(RunSource(run))``."""

from __future__ import annotations

import time
from collections.abc import Iterable

from allranks.core.formatting import clean
from allranks.observe.view.attempt_views import task_status
from allranks.observe.view.metric_columns import HEAD, Columns
from allranks.observe.view.model import RunView
from allranks.observe.view.node_views import nodes_now, ranks_now
from allranks.observe.view.run_source import RunSource
from allranks.observe.view.script_kind import has_trainer
from allranks.observe.view.step_phases import phases
from allranks.observe.view.training_pace import progress
from allranks.runs.attempt import Failure
from allranks.runs.attempt_history import attempt_history, goodput
from allranks.runs.log_lines import LogLine, read_logs
from allranks.schedulers import run_statuses
from allranks.schedulers.run_state import RunStatus

_WINDOWS = 20
"""The phases shown are means over so many of the last windows."""
_LINES = 5
_LONGEST = 2000
"""Characters of a line of a log: more can nobody show."""


def view_run(source: RunSource, status: RunStatus | None = None) -> RunView:
    """The run as the last refresh of its source found it; its state is asked for unless given.

    Whatever the run has not (metrics, nodes, GPUs, attempts) is empty, never an error. Of a job array
    it is one task that is looked at, the one that the source follows.
    """
    now = time.time()
    status = status or run_statuses([source.run])[0]
    source.lives.hear(status)
    lives = [each.attempt for each in source.attempts.values()]
    if source.task:
        status = task_status(status, source.task, lives)
    last = source.last
    nodes = nodes_now(last) if last else []
    entries = attempt_history(lives, status.is_running)
    error = last.attempt.first_failure() if last else None
    return RunView(
        status=status,
        progress=progress(source, status, now),
        values=_values(source),
        loss=source.train.curve("train_loss"),
        val_loss=source.val.curve("val_loss"),
        phases=phases(source, _WINDOWS),
        nodes=nodes,
        ranks=ranks_now(last, nodes) if last else [],
        attempts=entries,
        goodput=goodput(entries) if entries else None,
        error=error,
        last_lines=_last_lines(source, error),
        time=now,
        trainer=len(source.train) > 0 or has_trainer(source.run),
        task=source.task or "",
        failed_tasks=source.lives.failed_tasks(),
        running_tasks=source.lives.running_tasks(),
    )


def _values(source: RunSource) -> dict[str, float]:
    """The latest of each metric; NaN where the latest was not finite."""
    found: dict[str, float] = {}
    for kind in ("test", "val", "epoch", "train"):
        columns: Columns = getattr(source, kind)
        for name in columns.names:
            value = columns.last(name)
            if name not in HEAD and value is not None:
                found[name] = value
        found.update(dict.fromkeys(source.nonfinite.get(kind, ()), float("nan")))
    return found


def _last_lines(source: RunSource, error: Failure | None) -> list[str]:
    """Of the rank that failed first, else of rank 0; else what Slurm wrote."""
    last = source.last
    if last is None or not last.attempt.log_files():
        return _shown(read_logs(source.run, tail=_LINES))
    rank = error.rank if error else 0
    return _shown(read_logs(source.run, ranks=[rank], tail=_LINES, attempt=last.number))


def _shown(lines: Iterable[LogLine]) -> list[str]:
    return [clean(line.text[:_LONGEST]) for line in lines]
