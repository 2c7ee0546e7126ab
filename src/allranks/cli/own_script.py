"""allranks submit job.sh: what lint says of the script, then the script itself to Slurm."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from allranks.lint.engine import LintReport


def submit_script(
    script: Path, args: list[str], values: dict[str, Any], how: dict[str, Any]
) -> None:
    """Lint, tell, and submit unless the script is sure to fail."""
    from allranks.schedulers.user_script import sbatch_words, submit_own

    sbatch_words(values)  # what cannot be passed on is told before anything else
    report = _linted(script, values.get("site"))
    errors = _tell_findings(script, report)
    if errors and not how["force"]:
        click.echo(
            f"Nothing was submitted: {errors} error{'s' * (errors > 1)}. Submit it all the same with --force.",
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
        from allranks.cli.submit import tell_job

        tell_job(run, job_id)
    if how["follow"]:
        from allranks.cli.following import follow_run

        raise click.exceptions.Exit(follow_run(run))


def _linted(script: Path, site: str | None) -> LintReport:
    from allranks.cli.lint import find_site_for
    from allranks.lint.engine import Settings, lint

    return lint([script], Settings(site=find_site_for(site)))


def _tell_findings(script: Path, report: LintReport) -> int:
    """Warnings and errors with their lines, and the changes that are safe to make; counts the errors."""
    import sys

    from allranks.lint.finding import Severity
    from allranks.lint.fixes import apply_fixes, diff_of
    from allranks.lint.show import Painter, show

    found = [each for each in report.findings if each.severity > Severity.NOTE]
    for line in show(found, Painter(sys.stderr.isatty())):
        click.echo(line, err=True)
    changes = [*apply_fixes(report, write=False)]
    if changes:
        click.echo(f"allranks lint --fix {script} would make these changes:", err=True)
        for path, old, new in changes:
            click.echo(diff_of(path, old, new), nl=False, err=True)
    return sum(each.severity >= Severity.ERROR for each in found)
