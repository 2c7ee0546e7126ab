"""A RunView as JSON values: what ``top --json`` prints and the page reads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from datetime import datetime
from typing import Any

from allranks.observe.view.model import RunView
from allranks.runs.attempt import Failure
from allranks.runs.attempt_history import AttemptSummary, Goodput
from allranks.schedulers.run_state import RunStatus


def view_record(run_view: RunView) -> dict[str, Any]:
    """Return the fields of RunView; ``status`` and ``attempts`` as in ``ps --json``.

    JSON knows no NaN: such a value is null, and its name is in ``nonfinite``.
    """
    values = run_view.values
    content = {
        "time": run_view.time,
        "task": run_view.task or None,
        "failed_tasks": run_view.failed_tasks,
        "running_tasks": run_view.running_tasks,
        "status": status_record(run_view.status),
        "progress": {**asdict(run_view.progress), "share": run_view.progress.share},
        "values": values,
        "nonfinite": [name for name, value in values.items() if not math.isfinite(value)],
        "loss": run_view.loss,
        "val_loss": run_view.val_loss,
        "phases": run_view.phases,
        "nodes": run_view.nodes,
        "ranks": run_view.ranks,
        "attempts": [entry_record(entry) for entry in run_view.attempts],
        "goodput": _goodput(run_view.goodput),
        "error": _failure(run_view.error),
        "last_lines": run_view.last_lines,
    }
    return {name: json_value(value) for name, value in content.items()}


def json_value(value: Any) -> Any:
    """Return a value as JSON has it: dataclasses as objects, times as text, NaN as null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, datetime):
        return value.isoformat()
    if is_dataclass(value) and not isinstance(value, type):
        return {name: json_value(each) for name, each in vars(value).items()}
    if isinstance(value, Mapping):
        return {str(name): json_value(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(each) for each in value]
    return str(value)


def status_record(status: RunStatus) -> dict[str, Any]:
    """Return one run as ``ps --json`` shows it."""
    record = {
        "run": status.run.id,
        "name": status.run.name,
        "folder": str(status.run.path),
        "scheduler": status.run.scheduler,
        "job_id": status.job_id or None,
        "state": status.state.name,
        "exit_code": status.exit_code,
        "nodes": status.nodes,
        "attempts": status.attempts,
        "created": status.run.created,
        "start": status.start,
        "end": status.end,
        "expected_start": status.expected_start,
        "why": status.why,
    }
    return {name: json_value(value) for name, value in record.items()}


def entry_record(entry: AttemptSummary) -> dict[str, Any]:
    """Return one attempt as ``ps --attempts --json`` shows it."""
    attempt = entry.attempt
    record = {
        "attempt": attempt.number,
        "job_id": attempt.job_id or None,
        "array_task": attempt.array_task or None,
        "start": attempt.start,
        "end": attempt.end,
        "seconds": entry.seconds,
        "nodes": attempt.hosts,
        "first_step": entry.first_step,
        "last_step": entry.last_step,
        "kept_step": entry.kept_step,
        "exit_code": attempt.exit_code,
        "outcome": entry.outcome,
        "reason": attempt.reason,
        "next": attempt.next or None,
        "lost_nodes": attempt.lost_nodes,
        "useful_seconds": entry.useful,
    }
    return {name: json_value(value) for name, value in record.items()}


def _failure(found: Failure | None) -> dict[str, Any] | None:
    """Return all fields of a failure, with its end and its error in a line each."""
    return None if found is None else {**vars(found), "how": found.how, "error": found.error}


def _goodput(found: Goodput | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "share": found.share,
        "useful_seconds": found.useful,
        "allocated_seconds": found.allocated,
    }
