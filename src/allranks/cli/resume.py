"""allranks resume: start another attempt of a run that has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from allranks.runs.run import Run


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
    from allranks.core.units import parse_time
    from allranks.runs.run_lookup import find_run
    from allranks.schedulers.resume_run import check_resumable

    found = find_run(run)
    check_resumable(found, force)
    limits["time"] = parse_time(limits["time"]) if limits["time"] else None
    if found.scheduler == "local":
        raise click.exceptions.Exit(_here(found, limits))
    _to_slurm(found, limits, as_json)
    if follow:
        from allranks.cli.follow_run import follow_run

        raise click.exceptions.Exit(follow_run(found))


def _to_slurm(run: Run, limits: dict[str, Any], as_json: bool) -> None:
    from allranks.schedulers.resume_run import last_attempt_note, submit_again

    number = len(run.attempts) + 1
    job_id = submit_again(run, limits)
    if note := last_attempt_note(run):
        click.echo(f"{click.style('note:', fg='yellow')} {note}", err=True)
    if as_json:
        import json

        click.echo(json.dumps({"job_id": job_id, "run": run.id, "folder": str(run.path)}))
        return
    click.echo(f"Submitted job {click.style(job_id, bold=True)}: attempt {number} of {run.id}")
    click.echo(f"  watch   allranks logs -f {job_id}")


def _here(run: Run, limits: dict[str, Any]) -> int:
    """Start it on this machine, or in the current allocation if that is how it was started."""
    import os

    if (run.path / "job.sh").is_file():
        from allranks.errors import UsageError
        from allranks.schedulers.slurm import run_script

        if "SLURM_JOB_ID" not in os.environ:
            raise UsageError(
                f"{run.id} ran inside an allocation. Get one with salloc, and resume there."
            )
        return run_script(run, {})
    from dataclasses import replace

    from allranks.cli.planning import job_python
    from allranks.schedulers.local import start_here
    from allranks.schedulers.resume_run import local_plan

    plan = local_plan(run)
    given = {name: value for name, value in limits.items() if value is not None}
    plan = replace(plan, job=replace(plan.job, **given))
    return start_here(plan, plan.job.python or job_python(), again=run)[1]
