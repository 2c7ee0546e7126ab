"""allranks submit: the script, checked and handed to Slurm."""

from __future__ import annotations

from typing import Any

import click

from allranks.cli.job_options import JobCommand, job_options


@click.command(cls=JobCommand)
@job_options
@click.option("--dry-run", is_flag=True, help="Check and show the script; submit nothing.")
@click.option("--follow", "-f", is_flag=True, help="Stay and show the logs until the job ends.")
@click.option("--json", "as_json", is_flag=True, help="Print the job id and the folder as JSON.")
@click.option("--force", is_flag=True, help="A job script of your own, though lint finds errors.")
def submit(**parameters: Any) -> None:
    """Submit a training script to Slurm, or a job script of your own.

    \b
        allranks submit --nodes 2 --gpus-per-node 4 --time 2h train.py --lr 0.1
        allranks submit job.sh
    """
    if _is_own(parameters["command"]):
        _submit_own(parameters)
        return
    from allranks.cli.planning import made_by, make_plan

    plan = make_plan(parameters, "slurm", detect=True)
    if parameters["dry_run"]:
        _dry_run(plan, parameters["as_json"])
        return
    from allranks.cli.planning import job_python
    from allranks.schedulers.slurm import submit_plan

    notes = _preflight(plan)
    submitted = submit_plan(plan, made_by=made_by(), python=plan.job.python or job_python())
    if parameters["as_json"]:
        import json

        folder = str(submitted.run.path)
        click.echo(
            json.dumps({"job_id": submitted.job_id, "run": submitted.run.id, "folder": folder})
        )
    else:
        _tell(submitted, [*notes, *_afterwards(plan, submitted.job_id)])
    if parameters["follow"]:
        from allranks.cli.following import follow_run

        raise click.exceptions.Exit(follow_run(submitted.run))


def _is_own(command: tuple[str, ...]) -> bool:
    from allranks.schedulers.user_script import is_own_script

    return bool(command) and is_own_script(command[0])


def _submit_own(parameters: dict[str, Any]) -> None:
    from pathlib import Path

    from allranks.cli.job_options import given_values
    from allranks.cli.own_script import submit_script

    script, *args = parameters["command"]
    submit_script(Path(script), args, given_values(parameters), parameters)


def _dry_run(plan: Any, as_json: bool) -> None:
    import json
    import shutil

    from allranks.cli.planning import made_by
    from allranks.job.sbatch import render
    from allranks.schedulers.slurm import check_syntax, expected_start

    text = render(plan, made_by=made_by())
    check_syntax(text)
    said = expected_start(text, plan.job.chdir) if shutil.which("sbatch") else None
    click.echo(json.dumps({"script": text, "slurm": said}) if as_json else text.rstrip("\n"))
    if said:
        click.echo(f"Slurm says: {said}", err=True)
    click.echo("Nothing was submitted (--dry-run).", err=True)


def _preflight(plan: Any) -> list[str]:
    """What to expect of --requeue on this cluster."""
    if not plan.job.requeue:
        return []
    from allranks.schedulers.preflight import requeue_notes

    return requeue_notes(plan)


def _afterwards(plan: Any, job_id: str) -> list[str]:
    if not plan.job.requeue:
        return []
    from allranks.schedulers.preflight import job_note

    return [note for note in (job_note(job_id),) if note]


def _tell(submitted: Any, notes: list[str]) -> None:
    for note in [*submitted.snapshot.notes, *notes]:
        click.echo(f"{click.style('note:', fg='yellow')} {note}", err=True)
    tell_job(submitted.run, submitted.job_id)


def tell_job(run: Any, job_id: str) -> None:
    """What became of the submission, and what to type next."""
    click.echo(f"Submitted job {click.style(job_id, bold=True)} as {run.id}")
    click.echo(f"  folder  {run.path}")
    click.echo(f"  watch   allranks logs -f {job_id}")
    click.echo(f"  state   allranks ps {job_id}")
    click.echo(f"  end     allranks cancel {job_id}")
