"""allranks lint: find mistakes in job scripts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from allranks.cluster.sites.model import Site
    from allranks.lint.linter import LintReport, Settings


@click.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path), metavar="FILE...")
@click.option(
    "--select", multiple=True, metavar="RULES", help="Use only these rules: AR101, AR2, a name."
)
@click.option("--ignore", multiple=True, metavar="RULES", help="Skip these rules.")
@click.option(
    "--severity", type=click.Choice(["error", "warning", "note"]), default="warning", show_default=True,
    help="Exit with 1 on findings of at least this severity.",
)  # fmt: skip
@click.option("--fix", is_flag=True, help="Apply the safe fixes and show them.")
@click.option("--diff", is_flag=True, help="Show the changes that --fix would make.")
@click.option(
    "--explain", is_flag=True, help="Describe the job: nodes, tasks, processes, addresses."
)
@click.option("--site", metavar="NAME", help="Check against this cluster: a name or a site file.")
@click.option(
    "--shellcheck/--no-shellcheck",
    default=None,
    help="Run shellcheck too [default: if it is installed].",
)
@click.option("--json", "form", flag_value="json", help="Print findings as JSON.")
@click.option("--sarif", "form", flag_value="sarif", help="Print findings as SARIF.")
@click.option("--github", "form", flag_value="github", help="Print findings as GitHub annotations.")
@click.option(
    "--rules", "list_rules", is_flag=True, help="List the rules, or explain those in --select."
)
def lint(
    files: tuple[Path, ...],
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    severity: str,
    fix: bool,
    diff: bool,
    explain: bool,
    site: str | None,
    shellcheck: bool | None,
    form: str | None,
    list_rules: bool,
) -> int:
    """Find mistakes in job scripts before they wait in the queue.

    FILE is a job script, a folder of them, a training script (.py), a DeepSpeed or accelerate
    configuration, or - for standard input.

    \b
        allranks lint job.sh
        allranks lint --fix job.sh
        allranks lint --explain job.sh
    """
    from allranks.lint.linter import Settings, rule_names

    settings = Settings(
        select=rule_names(select),
        ignore=rule_names(ignore),
        site=find_site_for(site),
        shellcheck=_has_shellcheck() if shellcheck is None else shellcheck,
    )
    if list_rules:
        return _list_rules(settings)
    if not files:
        raise click.UsageError("Name a job script: allranks lint job.sh")
    report = _lint(files, settings)
    if explain:
        return _explain(report)
    if fix or diff:
        report = _fix(report, files, settings, write=fix and not diff)
    _show(report, form)
    from allranks.lint.finding import Severity

    worst = max((each.severity for each in report.findings), default=None)
    return 1 if worst is not None and worst >= Severity.of(severity) else 0


def _lint(files: tuple[Path, ...], settings: Settings) -> LintReport:
    from allranks.lint.linter import LintReport, lint_source
    from allranks.lint.linter import lint as lint_paths
    from allranks.lint.source_text import SourceFile

    if files == (Path("-"),):
        report = LintReport()
        lint_source(SourceFile("<stdin>", sys.stdin.read()), settings, report)
        return report
    return lint_paths(files, settings)


def find_site_for(name: str | None) -> Site | None:
    """Return the named site, or the detected cluster; never guess another one."""
    from allranks.cluster.sites import find_site, load_site
    from allranks.errors import AllranksError

    if name is not None:
        return load_site(name)
    try:
        return find_site()
    except AllranksError:  # a broken site file of one's own is the affair of `allranks sites`
        return None


def _has_shellcheck() -> bool:
    import shutil

    return shutil.which("shellcheck") is not None


def _show(report: LintReport, form: str | None) -> None:
    from allranks.lint.text_output import Painter, show, summary

    if form is not None:
        from allranks.lint.report_formats import FORMATS

        click.echo(FORMATS[form](report))
        return
    paint = Painter(sys.stdout.isatty())
    for line in show(report.findings, paint):
        click.echo(line)
    click.echo(summary(report.findings, len(report.sources), paint))


def _explain(report: LintReport) -> int:
    from allranks.lint.job_explanation import explain

    click.echo("\n\n".join(explain(job) for job in report.jobs))
    return 0


def _fix(
    report: LintReport, files: tuple[Path, ...], settings: Settings, write: bool
) -> LintReport:
    from allranks.lint.fixes import apply_fixes, diff_of

    for path, old, new in apply_fixes(report, write=write):
        click.echo(diff_of(path, old, new), nl=False)
    return _lint(files, settings) if write else report


def _list_rules(settings: Settings) -> int:
    from allranks.lint.text_output import list_rules

    click.echo(list_rules(settings))
    return 0
