"""allranks report: write a report of a run."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterator

    from allranks.observe.report.report_files import Report


@click.command()
@click.argument("run", required=False)
@click.option(
    "--task",
    metavar="N",
    help="Task of a job array [default: the newest; running ones first].",
)
@click.option("--job", metavar="ID", help="Any Slurm job, also one not started by allranks.")
@click.option("--output", "-o", metavar="FILE", help="File to write; - prints it.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["html", "markdown", "json"]),
    help="Format of the report [default: html].",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--open", "show", is_flag=True, help="Open the report in a browser.")
def report(
    run: str | None,
    task: str | None,
    job: str | None,
    output: str | None,
    form: str | None,
    as_json: bool,
    show: bool,
) -> None:
    """Report what RUN requested, what it used and what to change, as report.html in its folder.

    RUN is a name, a folder, a job id or `last` (the default). For a job that allranks did not start,
    use --job 12345 (needs Slurm accounting). For one task of a job array: JOB_3, or --task 3.
    """
    from allranks.observe.report.report_files import save_report

    form = _format(form, as_json, output)
    with _slow_notice():
        made = _make(run, task, job)
    if output == "-" or (as_json and not output):
        click.echo(made.text(form), nl=False)
        return
    path = save_report(made, form, output or "")
    click.echo(f"{made.facts.id}: {made.facts.state}")
    _print_summary(made)
    click.echo(f"  report  {path}")
    if show:
        click.launch(str(path))


def _format(form: str | None, as_json: bool, output: str | None) -> str:
    """Return the format: as given, else by the file extension."""
    from allranks.errors import UsageError
    from allranks.observe.report.report_files import FORMATS

    if as_json:
        if form not in (None, "json"):
            raise UsageError(f"--json and --format {form} contradict each other. Use one of them.")
        return "json"
    ending = (output or "").rpartition(".")[2]
    by_name = {ending: name for name, ending in FORMATS.items()}
    return form or by_name.get(ending, "html")


def _make(run: str | None, task: str | None, job: str | None) -> Report:
    from allranks.errors import UsageError
    from allranks.observe.report.report_files import report_job, report_run
    from allranks.runs.run_lookup import find_task

    if run and job:
        raise UsageError(f"Give either a run ('{run}') or --job {job}.")
    if job:
        return report_job(f"{job}_{task}" if task else job)
    found, chosen = find_task(run or "last", task)
    return report_run(found, task=chosen)


@contextmanager
def _slow_notice(seconds: float = 2.0) -> Iterator[None]:
    """Print a message if it takes long: Slurm hangs, or the run lasted for months."""
    from threading import Timer

    text = "Reading the samples and querying Slurm …"
    timer = Timer(seconds, lambda: click.echo(text, err=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _print_summary(made: Report, most: int = 3) -> None:
    """Print the most important advice."""
    from allranks.core.formatting import one_line
    from allranks.observe.report.verdict import array_summary

    colours = {"error": "red", "warning": "yellow", "note": "cyan"}
    if made.facts.tasks:
        click.echo(f"  {_wrapped(array_summary(made.facts))}")
    for each in made.advice[:most]:
        mark = click.style("•", fg=colours[each.severity], bold=True)
        click.echo(f"  {mark} {_wrapped(each.text)}")
        if each.command:
            click.secho(f"    {one_line(each.command)}", bold=True)
    if not made.advice:
        click.echo(f"  {made.verdict}")
    elif len(made.advice) > most:
        click.echo(f"  … and {len(made.advice) - most} more in the report")


def _wrapped(text: str) -> str:
    """Wrap a text to the width of the terminal, indented from the second line on."""
    import shutil
    import textwrap

    from allranks.core.formatting import one_line

    width = min(max(shutil.get_terminal_size().columns, 40), 100)
    return "\n    ".join(textwrap.wrap(one_line(text), width - 4))
