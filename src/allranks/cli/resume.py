"""allranks resume: start another attempt of a run that has ended."""

from __future__ import annotations

from typing import Any

import click


@click.command()
@click.argument("run", default="last")
@click.option(
    "--force", is_flag=True, help="Resume also a finished run, or one whose state is unknown."
)
@click.option(
    "--max-attempts",
    type=click.IntRange(1),
    metavar="N",
    help="Maximum number of attempts in total.",
)
@click.option(
    "--max-no-progress",
    type=click.IntRange(1),
    metavar="N",
    help="Maximum number of attempts in a row without progress.",
)
@click.option("--time", "-t", metavar="TIME", help="New time limit of the job: 2h, 12:00:00.")
@click.option("--follow", "-f", is_flag=True, help="Show the logs until the run ends.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print the job id and the run folder as JSON."
)
def resume(run: str, force: bool, follow: bool, as_json: bool, **limits: Any) -> None:
    """Resume RUN, which ended before its training finished, in the same run folder.

    A Slurm run is submitted again with its job script; a local run is started again here.
    """
    from allranks.cli.planning import job_python
    from allranks.cli.submit import report_start
    from allranks.core.units import parse_time
    from allranks.runs.run_lookup import find_run
    from allranks.schedulers import scheduler_of

    found = find_run(run)
    scheduler, attempt = scheduler_of(found), len(found.attempts) + 1
    scheduler.check_resumable(found, force)
    limits["time"] = parse_time(limits["time"]) if limits["time"] else None
    started = scheduler.resume(found, limits, python=job_python())
    if started.exit_code is not None:
        raise click.exceptions.Exit(started.exit_code)
    report_start(started, as_json=as_json, follow=follow, attempt=attempt)
