"""allranks logs: what the ranks wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from allranks.runs.run import Run


@click.command()
@click.argument("run", default="last")
@click.option("--follow", "-f", is_flag=True, help="Go on until the run ends.")
@click.option("--rank", "-r", "ranks", metavar="LIST", help="Only these ranks: 0, 0,3, 4-7.")
@click.option("--errors", is_flag=True, help="Only tracebacks and errors.")
@click.option(
    "--tail", "-n", type=click.IntRange(min=1), metavar="N", help="Only the last N lines."
)
@click.option("--attempt", type=int, metavar="N", help="Only this attempt.")
@click.option("--times", is_flag=True, help="Show the time of each line.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
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

    from allranks.cli.attempts import Between
    from allranks.cli.following import ArrayTasks, follow_run, say_between, show_line
    from allranks.runs.merged_logs import read_logs
    from allranks.runs.run_lookup import find_run

    found = find_run(run)
    chosen = read_ranks(ranks) if ranks else None
    if follow:
        raise click.exceptions.Exit(follow_run(found, ranks=chosen, errors=errors, as_json=as_json))
    if attempt is not None:
        _check_attempt(found, attempt)
    empty, tasks, wanted = True, ArrayTasks(found), _array_task(run)
    between = Between(found)
    for line in read_logs(found, ranks=chosen, errors=errors, tail=tail, attempt=attempt):
        if wanted and tasks[line.attempt] != wanted:
            continue
        empty = False
        if attempt is None and not as_json and not errors:
            say_between(between.line(line.attempt, tasks[line.attempt]))
        if times and line.time:
            line = replace(line, text=f"{line.time} {line.text}")
        show_line(line, task=tasks[line.attempt], as_json=as_json)
    if empty:
        click.echo(_nothing(found, errors), err=True)


def _check_attempt(run: Run, number: int) -> None:
    """An attempt without logs of ranks must not show those of all attempts, Slurm's own log."""
    known = {one.number: one for one in run.attempts}
    if number not in known:
        count = "1 attempt" if len(known) == 1 else f"{len(known)} attempts"
        raise click.BadParameter(f"{run.id} has {count}.", param_hint="--attempt")
    if not known[number].log_files():
        why = known[number].reason or "Its ranks wrote nothing that allranks kept."
        click.echo(
            f"Attempt {number} of {run.id} has no logs of its own. {why}\n"
            f"What Slurm wrote, of all attempts: allranks logs {run.id}",
            err=True,
        )
        raise click.exceptions.Exit(0)


def _array_task(reference: str) -> str:
    """``3`` of ``4711_3``: one task of an array."""
    job, _, task = reference.partition("_")
    return task if job.isdigit() and task.isdigit() else ""


def _nothing(run: Run, errors: bool) -> str:
    """Why there is nothing to show: what the run has to offer instead."""
    attempts = run.attempts
    ranks = sorted({rank for attempt in attempts for rank in attempt.log_files()})
    if not ranks or errors:
        what = "errors" if errors else "lines"
        return f"{run.id} has no {what} so far. State: allranks ps {run.id}"
    numbers = ", ".join(str(attempt.number) for attempt in attempts)
    return (
        f"Nothing of that in {run.id}: it has ranks {ranks[0]} to {ranks[-1]}, attempts {numbers}."
    )


def read_ranks(text: str) -> list[int]:
    """``0,4-7`` as numbers."""
    ranks: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise click.BadParameter(f"'{text}' is not a list of ranks. Write 0, 0,3 or 4-7.")
        ranks += range(int(first), int(last or first) + 1)
    return ranks
