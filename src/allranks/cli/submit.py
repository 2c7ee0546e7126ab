"""allranks submit: submit a training script, or a job script of the user's, to Slurm."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from allranks.cli.job_options import JobCommand, job_options

if TYPE_CHECKING:
    from allranks.lint.linter import LintReport


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
        _print_submitted(submitted, [*notes, *_afterwards(plan, submitted.job_id)])
    if parameters["follow"]:
        from allranks.cli.follow_run import follow_run

        raise click.exceptions.Exit(follow_run(submitted.run))


def _is_job_script(command: tuple[str, ...]) -> bool:
    from allranks.schedulers.user_script import is_own_script

    return bool(command) and is_own_script(command[0])


def _submit_job_script(parameters: dict[str, Any]) -> None:
    from pathlib import Path

    from allranks.cli.job_options import given_values
    from allranks.cli.submit import submit_script

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


def _preflight(plan: Any) -> list[str]:
    """Return notes on how this cluster treats --requeue."""
    if not plan.job.requeue:
        return []
    from allranks.schedulers.preflight import requeue_notes

    return requeue_notes(plan)


def _afterwards(plan: Any, job_id: str) -> list[str]:
    if not plan.job.requeue:
        return []
    from allranks.schedulers.preflight import job_note

    return [note for note in (job_note(job_id),) if note]


def _print_submitted(submitted: Any, notes: list[str]) -> None:
    for note in [*submitted.snapshot.notes, *notes]:
        click.echo(f"{click.style('note:', fg='yellow')} {note}", err=True)
    print_job(submitted.run, submitted.job_id)


def print_job(run: Any, job_id: str) -> None:
    """Print the job id and the commands to use next."""
    click.echo(f"Submitted job {click.style(job_id, bold=True)} as {run.id}")
    click.echo(f"  folder  {run.path}")
    click.echo(f"  watch   allranks logs -f {job_id}")
    click.echo(f"  state   allranks ps {job_id}")
    click.echo(f"  cancel  allranks cancel {job_id}")


def submit_script(
    script: Path, args: list[str], values: dict[str, Any], how: dict[str, Any]
) -> None:
    """Lint the script, print the findings, and submit it unless it has errors."""
    from allranks.schedulers.user_script import sbatch_words, submit_own

    sbatch_words(values)  # reject options that cannot be passed on, before anything else
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
    run, job_id = submit_own(script, args, values)
    if how["as_json"]:
        import json

        click.echo(json.dumps({"job_id": job_id, "run": run.id, "folder": str(run.path)}))
    else:
        print_job(run, job_id)
    if how["follow"]:
        from allranks.cli.follow_run import follow_run

        raise click.exceptions.Exit(follow_run(run))


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
