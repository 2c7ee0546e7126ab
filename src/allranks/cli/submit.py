"""allranks submit: submit a training script, or a job script of the user's, to Slurm."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from allranks.cli.job_options import JobCommand, job_options

if TYPE_CHECKING:
    from allranks.lint.linter import LintReport
    from allranks.schedulers.base import StartedRun


@click.command(
    cls=JobCommand,
    common=(
        "nodes", "gpus_per_node", "time", "partition", "account", "name", "launcher", "requeue",
        "venv", "modules", "env", "config", "dry_run", "follow", "as_json", "explain", "help",
    ),
)  # fmt: skip
@job_options
@click.option(
    "--dry-run", is_flag=True, help="Print and check the job script without submitting it."
)
@click.option("--follow", "-f", is_flag=True, help="Show the logs until the job ends.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print the job id and the run folder as JSON."
)
@click.option("--force", is_flag=True, help="Submit a job script although lint finds errors.")
def submit(**parameters: Any) -> None:
    """Submit a training script or your own job script to Slurm.

    \b
        allranks submit --nodes 2 --gpus-per-node 4 --time 2h train.py --lr 0.1
        allranks submit job.sh
    """
    if _is_job_script(parameters["command"]):
        _submit_job_script(parameters)
        return
    from allranks.cli.planning import job_python, made_by, make_plan
    from allranks.schedulers import get_scheduler

    scheduler = get_scheduler("slurm")
    plan = make_plan(parameters, scheduler, detect=True)
    if parameters["dry_run"]:
        _dry_run(plan, parameters["as_json"])
        return
    python = plan.job.python or job_python()
    report_start(
        scheduler.start(plan, made_by=made_by(), python=python),
        as_json=parameters["as_json"],
        follow=parameters["follow"],
    )


def _is_job_script(command: tuple[str, ...]) -> bool:
    from allranks.schedulers.user_script import is_job_script

    return bool(command) and is_job_script(command[0])


def _submit_job_script(parameters: dict[str, Any]) -> None:
    from allranks.cli.job_options import given_values

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
        click.echo(f"sbatch --test-only: {said}", err=True)
    click.echo("Nothing was submitted (--dry-run).", err=True)


def report_start(
    started: StartedRun, *, as_json: bool, follow: bool, attempt: int | None = None
) -> None:
    """Print the job id and the commands to use next; with ``follow``, show the logs until the end."""
    run, job_id = started.run, started.job_id
    for note in started.notes:
        click.echo(f"{click.style('note:', fg='yellow')} {note}", err=True)
    if as_json:
        import json

        click.echo(json.dumps({"job_id": job_id, "run": run.id, "folder": str(run.path)}))
    else:
        job = f"Submitted job {click.style(job_id, bold=True)}"
        click.echo(f"{job}: attempt {attempt} of {run.id}" if attempt else f"{job} as {run.id}")
        click.echo(f"  folder  {run.path}")
        click.echo(f"  watch   allranks logs -f {job_id}")
        click.echo(f"  state   allranks ps {job_id}")
        click.echo(f"  cancel  allranks cancel {job_id}")
    if follow:
        from allranks.cli.follow_run import follow_run

        raise click.exceptions.Exit(follow_run(run))


def submit_script(
    script: Path, args: list[str], values: dict[str, Any], how: dict[str, Any]
) -> None:
    """Lint the script, print the findings, and submit it unless it has errors."""
    from allranks.schedulers.user_script import sbatch_options, submit_job_script

    sbatch_options(values)  # reject options that cannot be passed on, before anything else
    report = _lint_script(script, values.get("site"))
    errors = _print_findings(script, report)
    if errors and not how["force"]:
        click.echo(
            f"Nothing was submitted: {errors} error{'s' * (errors > 1)}. Submit it anyway with --force.",
            err=True,
        )
        raise click.exceptions.Exit(1)
    if how["dry_run"]:
        click.echo("Nothing was submitted (--dry-run).", err=True)
        return
    started = submit_job_script(script, args, values)
    report_start(started, as_json=how["as_json"], follow=how["follow"])


def _lint_script(script: Path, site: str | None) -> LintReport:
    from allranks.cli.lint import find_site_for
    from allranks.lint.linter import Settings, lint

    return lint([script], Settings(site=find_site_for(site)))


def _print_findings(script: Path, report: LintReport) -> int:
    """Print errors, warnings and the safe fixes; return the number of errors."""
    import sys

    from allranks.lint.finding import Severity
    from allranks.lint.fixes import apply_fixes, diff_of
    from allranks.lint.text_output import Painter, show

    found = [each for each in report.findings if each.severity > Severity.NOTE]
    for line in show(found, Painter(sys.stderr.isatty())):
        click.echo(line, err=True)
    changes = [*apply_fixes(report, write=False)]
    if changes:
        click.echo(f"allranks lint --fix {script} would make these changes:", err=True)
        for path, old, new in changes:
            click.echo(diff_of(path, old, new), nl=False, err=True)
    return sum(each.severity >= Severity.ERROR for each in found)
