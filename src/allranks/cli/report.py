"""allranks report: a run on one page."""

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
    help="This task of a job array [default: the newest, running before ended].",
)
@click.option("--job", metavar="ID", help="A Slurm job, also one that allranks did not start.")
@click.option("--output", "-o", metavar="FILE", help="Where to write it; - prints it.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["html", "markdown", "json"]),
    help="One page (html), text to paste (markdown), for programs (json) [default: html].",
)
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
@click.option("--open", "show", is_flag=True, help="Open the page in a browser.")
def report(
    run: str | None,
    task: str | None,
    job: str | None,
    output: str | None,
    form: str | None,
    as_json: bool,
    show: bool,
) -> None:
    """What RUN asked for, what it used, and what to change: report.html in its folder.

    RUN is a name, a folder, a job id or `last`, which is also meant without one. A job that allranks
    did not start is told from Slurm's accounting: --job 12345. Of a job array one task is told: JOB_3,
    or --task 3.
    """
    from allranks.observe.report.report_files import save

    form = _form(form, as_json, output)
    with _patience():
        made = _made(run, task, job)
    if output == "-" or (as_json and not output):
        click.echo(made.text(form), nl=False)
        return
    path = save(made, form, output or "")
    click.echo(f"{made.facts.id}: {made.facts.state}")
    _say(made)
    click.echo(f"  report  {path}")
    if show:
        click.launch(str(path))


def _form(form: str | None, as_json: bool, output: str | None) -> str:
    """What was asked for; else what the file's name ends in says."""
    from allranks.errors import UsageError
    from allranks.observe.report.report_files import FORMATS

    if as_json:
        if form not in (None, "json"):
            raise UsageError(f"--json and --format {form} contradict each other: leave one out.")
        return "json"
    ending = (output or "").rpartition(".")[2]
    by_name = {ending: name for name, ending in FORMATS.items()}
    return form or by_name.get(ending, "html")


def _made(run: str | None, task: str | None, job: str | None) -> Report:
    from allranks.errors import UsageError
    from allranks.observe.report.report_files import report_job, report_run
    from allranks.runs.run_lookup import find_task

    if run and job:
        raise UsageError(f"'{run}' and --job {job} are two things: name one.")
    if job:
        return report_job(f"{job}_{task}" if task else job)
    found, chosen = find_task(run or "last", task)
    return report_run(found, task=chosen)


@contextmanager
def _patience(seconds: float = 2.0) -> Iterator[None]:
    """Say what is waited for when it takes long: a Slurm that hangs, a run of months."""
    from threading import Timer

    text = "Reading what was measured, and asking Slurm …"
    timer = Timer(seconds, lambda: click.echo(text, err=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _say(made: Report, most: int = 3) -> None:
    """The most important of it."""
    from allranks.core.formatting import one_line
    from allranks.observe.report.verdict import array

    colours = {"error": "red", "warning": "yellow", "note": "cyan"}
    if made.facts.tasks:
        click.echo(f"  {_wrapped(array(made.facts))}")
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
    """In lines that fit the terminal, all but the first indented."""
    import shutil
    import textwrap

    from allranks.core.formatting import one_line

    width = min(max(shutil.get_terminal_size().columns, 40), 100)
    return "\n    ".join(textwrap.wrap(one_line(text), width - 4))
