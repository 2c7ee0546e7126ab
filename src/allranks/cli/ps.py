"""allranks ps: runs and their states."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from datetime import datetime

    from allranks.schedulers.status import RunStatus


@click.command()
@click.argument("runs", nargs=-1, metavar="[RUN]…")
@click.option("--all", "-a", "everything", is_flag=True, help="Every run, not only the last 20.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def ps(runs: tuple[str, ...], everything: bool, as_json: bool) -> None:
    """List runs, the newest first, or show the runs named. Works without accounting."""
    from allranks.runs.index import find_run, list_runs
    from allranks.schedulers.status import run_statuses

    found = [find_run(name) for name in runs] or list_runs(limit=None if everything else 20)
    statuses = run_statuses(found)
    if as_json:
        import json

        click.echo(json.dumps([_record(status) for status in statuses], indent=2))
    elif not statuses:
        click.echo("No runs yet. Start one: allranks run train.py", err=True)
    else:
        _table(statuses)


def _record(status: RunStatus) -> dict[str, object]:
    return {
        "run": status.run.id,
        "name": status.run.name,
        "folder": str(status.run.path),
        "scheduler": status.run.scheduler,
        "job_id": status.job_id or None,
        "state": status.state.name,
        "exit_code": status.exit_code,
        "nodes": status.nodes,
        "attempts": status.attempts,
        "start": _iso(status.start),
        "end": _iso(status.end),
        "expected_start": _iso(status.expected_start),
        "why": status.why,
    }


def _iso(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment else None


def _table(statuses: list[RunStatus]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("RUN", "JOB", "STATE", "TIME", "NODES"):
        table.add_column(title, no_wrap=title != "NODES", overflow="fold")
    table.add_column("WHY", ratio=1, overflow="fold")
    for status in statuses:
        colour = "green" if status.exit_code == 0 else "red" if status.state.ended else "cyan"
        table.add_row(
            status.run.id,
            status.job_id or "here",
            Text(_state(status), style=colour),
            _elapsed(status),
            status.nodes,
            _why(status),
        )
    Console().print(table)


def _state(status: RunStatus) -> str:
    code = f" ({status.exit_code})" if status.exit_code else ""
    return status.state.value + code


def _elapsed(status: RunStatus) -> str:
    from datetime import datetime, timezone

    if status.start is None or not (status.end or status.state.active):
        return ""
    seconds = ((status.end or datetime.now(timezone.utc)) - status.start).total_seconds()
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}"


def _why(status: RunStatus) -> str:
    from allranks.cli.following import local_time

    if status.expected_start:
        return f"{status.why}; starts about {local_time(status.expected_start)}"
    return status.why
