"""allranks logs: show the output of the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from allranks.runs.run_folder import Run


@click.command()
@click.argument("run", default="last")
@click.option("--follow", "-f", is_flag=True, help="Follow the logs until the run ends.")
@click.option("--rank", "-r", "ranks", metavar="LIST", help="Show only these ranks: 0, 0,3, 4-7.")
@click.option("--errors", is_flag=True, help="Show only tracebacks and errors.")
@click.option(
    "--tail", "-n", type=click.IntRange(min=1), metavar="N", help="Show only the last N lines."
)
@click.option("--attempt", type=int, metavar="N", help="Show only this attempt.")
@click.option("--times", is_flag=True, help="Prefix each line with its time.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def logs(
    run: str,
    follow: bool,
    ranks: str | None,
    errors: bool,
    tail: int | None,
    attempt: int | None,
    times: bool,
    as_json: bool,
) -> None:
    """Show the logs of RUN (a name, a folder, a job id or `last`), merged by time over all ranks."""
    from dataclasses import replace

    from allranks.cli.follow_run import (
        ArrayTasks,
        AttemptSeparator,
        follow_run,
        print_separator,
        show_line,
    )
    from allranks.runs.log_lines import read_logs
    from allranks.runs.run_lookup import find_run

    found = find_run(run)
    chosen = read_ranks(ranks) if ranks else None
    if follow:
        raise click.exceptions.Exit(follow_run(found, ranks=chosen, errors=errors, as_json=as_json))
    if attempt is not None:
        _check_attempt(found, attempt)
    empty, tasks, wanted = True, ArrayTasks(found), _array_task(run)
    between = AttemptSeparator(found)
    for line in read_logs(found, ranks=chosen, errors=errors, tail=tail, attempt=attempt):
        if wanted and tasks[line.attempt] != wanted:
            continue
        empty = False
        if attempt is None and not as_json and not errors:
            print_separator(between.line(line.attempt, tasks[line.attempt]))
        if times and line.time:
            line = replace(line, text=f"{line.time} {line.text}")
        show_line(line, task=tasks[line.attempt], as_json=as_json)
    if empty:
        click.echo(_explain_empty(found, errors), err=True)


def _check_attempt(run: Run, number: int) -> None:
    """Reject an unknown attempt, and explain one without rank logs instead of showing Slurm's log."""
    known = {one.number: one for one in run.attempts}
    if number not in known:
        count = "1 attempt" if len(known) == 1 else f"{len(known)} attempts"
        raise click.BadParameter(f"{run.id} has {count}.", param_hint="--attempt")
    if not known[number].log_files():
        why = known[number].reason or "Its ranks wrote no output."
        click.echo(
            f"Attempt {number} of {run.id} has no rank logs. {why}\n"
            f"Slurm's log of all attempts: allranks logs {run.id}",
            err=True,
        )
        raise click.exceptions.Exit(0)


def _array_task(reference: str) -> str:
    """Return ``3`` for ``4711_3``, a task of a job array, else an empty string."""
    job, _, task = reference.partition("_")
    return task if job.isdigit() and task.isdigit() else ""


def _explain_empty(run: Run, errors: bool) -> str:
    """Explain why there is nothing to show, and name what the run has."""
    attempts = run.attempts
    ranks = sorted({rank for attempt in attempts for rank in attempt.log_files()})
    if not ranks or errors:
        what = "errors" if errors else "lines"
        return f"{run.id} has no {what} yet. State: allranks ps {run.id}"
    numbers = ", ".join(str(attempt.number) for attempt in attempts)
    return f"{run.id} has no such lines. It has ranks {ranks[0]} to {ranks[-1]} and attempts {numbers}."


def read_ranks(text: str) -> list[int]:
    """Parse ``0,4-7`` into rank numbers."""
    ranks: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise click.BadParameter(f"'{text}' is not a list of ranks. Write 0, 0,3 or 4-7.")
        ranks += range(int(first), int(last or first) + 1)
    return ranks
