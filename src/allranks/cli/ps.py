"""allranks ps: list runs, their states and their attempts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from allranks.core.formatting import clock
from allranks.runs.attempt_history import AttemptSummary, attempt_history, goodput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from allranks.schedulers.run_state import RunStatus


@click.command()
@click.argument("runs", nargs=-1, metavar="[RUN]…")
@click.option(
    "--all", "-a", "everything", is_flag=True, help="List all runs, not only the last 20."
)
@click.option("--attempts", is_flag=True, help="Show every attempt and the goodput.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def ps(runs: tuple[str, ...], everything: bool, attempts: bool, as_json: bool) -> None:
    """List runs, newest first, or the runs named. Works without Slurm accounting."""
    from allranks.runs.run_lookup import find_run, list_runs
    from allranks.schedulers import run_statuses

    if attempts:
        runs = runs or ("last",)
    found = [find_run(name) for name in runs] or list_runs(limit=None if everything else 20)
    statuses = run_statuses(found)
    if attempts:
        _attempts(statuses, as_json)
    elif as_json:
        import json

        from allranks.observe.view.view_json import status_record

        click.echo(json.dumps([status_record(status) for status in statuses], indent=2))
    elif not statuses:
        click.echo("No runs yet. Start one: allranks run train.py", err=True)
    else:
        _table(statuses)


def _attempts(statuses: list[RunStatus], as_json: bool) -> None:
    if as_json:
        import json

        click.echo(json.dumps([_attempts_record(status) for status in statuses], indent=2))
        return
    for status in statuses:
        click.echo(f"{status.run.id}  {_state(status)}")
        _show_attempts(status)


def _table(statuses: list[RunStatus]) -> None:
    """Print one line per run; a reason that does not fit goes on the next line."""
    import shutil
    import textwrap

    rows = [_row(status) for status in statuses]
    widths = [max(map(len, column)) for column in zip(_TITLES, *rows, strict=True)]
    width = max(shutil.get_terminal_size().columns, 40)
    click.secho("  ".join([*_padded(_TITLES, widths), "WHY"]), bold=True)
    for status, row in zip(statuses, rows, strict=True):
        cells, why = _padded(row, widths), _why(status)
        fits = sum(widths) + 2 * len(widths) + len(why) <= width
        cells[2] = click.style(cells[2], fg=_colour(status))
        click.echo("  ".join([*cells, why if fits else ""]).rstrip())
        if why and not fits:
            click.echo(textwrap.indent("\n".join(textwrap.wrap(why, width - 4)), "    "))


_TITLES = ("RUN", "JOB", "STATE", "TIME", "NODES")
_NODES = 24


def _row(status: RunStatus) -> list[str]:
    nodes = status.nodes if len(status.nodes) <= _NODES else f"{status.nodes[: _NODES - 1]}…"
    job = status.job_id or ("here" if status.is_here else "")
    return [status.run.id, job, _state(status), _elapsed(status), nodes]


def _padded(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]


def _colour(status: RunStatus) -> str:
    if status.exit_code == 0:
        return "green"
    if _interrupted(status):
        return "yellow"
    return "red" if status.state.ended else "cyan"


def _state(status: RunStatus) -> str:
    shown = status.exit_code and not _interrupted(status)
    return status.state.value + (f" ({status.exit_code})" if shown else "")


def _interrupted(status: RunStatus) -> bool:
    from allranks.cluster.slurm.job_states import JobState

    return status.state is JobState.INTERRUPTED


def _elapsed(status: RunStatus) -> str:
    from allranks.schedulers.run_state import elapsed

    seconds = elapsed(status)
    return "" if seconds is None else clock(seconds)


def _why(status: RunStatus) -> str:
    from allranks.cli.follow_run import local_time

    why = status.why
    if status.expected_start:
        why += f"; starts about {local_time(status.expected_start)}"
    if status.attempts > 1 and not status.run.array:
        why = f"attempt {status.attempts}{': ' if why else ''}{why}"
    return why


_FOLLOWS = {
    "restart": "restarted in place",
    "requeue": "requeued",
    "requeued": "requeued by Slurm",
    "resubmit": "resubmitted",
}


def _attempts_record(status: RunStatus) -> dict[str, Any]:
    """Return the attempts and the goodput as JSON values."""
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


def _show_attempts(status: RunStatus) -> None:
    """Print the attempts of one run as a table, and its goodput."""
    from rich.console import Console
    from rich.table import Table

    entries = attempt_history(status.run.attempts, status.is_running)
    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    for title in ("ATTEMPT", "JOB", "START", "TIME", "NODES", "STEPS", "KEPT"):
        table.add_column(title, no_wrap=title != "NODES", overflow="fold")
    table.add_column("OUTCOME", ratio=1, overflow="fold")
    for entry in entries:
        table.add_row(*_attempt_row(entry))
    Console().print(table)
    click.echo(_goodput(entries))


def _attempt_row(entry: AttemptSummary) -> list[str]:
    from allranks.cli.follow_run import local_time

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
        return "goodput  unknown: the training does not report its steps"
    moved, held = clock(total.useful), clock(total.allocated)
    return f"goodput  {total.share:.0%}: {moved} of {held} allocated moved the model forward"
