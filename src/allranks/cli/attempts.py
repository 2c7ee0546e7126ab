"""The attempts of a run for people: the line between two of them, and the table of all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from allranks.core.formatting import clock
from allranks.runs.attempt import Attempt
from allranks.runs.attempt_history import AttemptSummary, attempt_history, goodput
from allranks.runs.run import Run

if TYPE_CHECKING:
    from allranks.schedulers.run_state import RunStatus

_FOLLOWS = {
    "restart": "started again in place",
    "requeue": "back in the queue",
    "requeued": "put back into the queue by Slurm",
    "resubmit": "submitted again",
}


class Between:
    """Says, before the first line of a later attempt, how the one before it ended."""

    def __init__(self, run: Run) -> None:
        self.folder = run.path / "attempts"
        self.seen: dict[str, int] = {}

    def line(self, attempt: int, task: str) -> str:
        """The line to show first; empty inside of an attempt and before the first."""
        before = self.seen.get(task)
        if before is not None and attempt <= before:
            return ""
        self.seen[task] = attempt
        if before is None:
            return ""
        return separator(Attempt.open(self.folder / str(before)), attempt)


def separator(ended: Attempt, number: int) -> str:
    """``--- attempt 1 interrupted: Its time limit came near. … Now attempt 2. ---``."""
    how = ended.outcome or "killed"
    why = f": {ended.reason}" if ended.reason else "."
    return f"--- attempt {ended.number} {how}{why} Now attempt {number}. ---"


def record(status: RunStatus) -> dict[str, Any]:
    """The attempts and the goodput, for programs."""
    from allranks.observe.view.view_json import entry_record

    entries = attempt_history(status.run.attempts, status.is_running)
    total = goodput(entries)
    return {
        "run": status.run.id,
        "attempts": [entry_record(entry) for entry in entries],
        "goodput": total.share,
        "useful_seconds": total.useful,
        "allocated_seconds": total.allocated,
    }


def show_attempts(status: RunStatus) -> None:
    """The table of one run, and its goodput below it."""
    from rich.console import Console
    from rich.table import Table

    entries = attempt_history(status.run.attempts, status.is_running)
    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    for title in ("ATTEMPT", "JOB", "START", "TIME", "NODES", "STEPS", "KEPT"):
        table.add_column(title, no_wrap=title != "NODES", overflow="fold")
    table.add_column("OUTCOME", ratio=1, overflow="fold")
    for entry in entries:
        table.add_row(*_row(entry))
    Console().print(table)
    click.echo(_goodput(entries))


def _row(entry: AttemptSummary) -> list[str]:
    from allranks.cli.following import local_time

    attempt = entry.attempt
    task = f" ({attempt.array_task})" if attempt.array_task else ""
    steps = "" if entry.first_step is None else f"{entry.first_step}→{entry.last_step}"
    follows = _FOLLOWS.get(attempt.next, "")
    return [
        str(attempt.number),
        f"{attempt.job_id}{task}" or "here",
        local_time(attempt.start) if attempt.start else "",
        clock(entry.seconds),
        ",".join(attempt.hosts),
        steps,
        "" if entry.kept_step is None else str(entry.kept_step),
        f"{entry.outcome}, {follows}" if follows else entry.outcome,
    ]


def _goodput(entries: list[AttemptSummary]) -> str:
    total = goodput(entries)
    if total.share is None or not any(entry.first_step is not None for entry in entries):
        return "goodput  not known: the training tells nothing of its steps"
    moved, held = clock(total.useful), clock(total.allocated)
    return f"goodput  {total.share:.0%}: {moved} of {held} allocated moved the model forward"
