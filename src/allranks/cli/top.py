"""allranks top: watch a run live in the terminal."""

from __future__ import annotations

import click


def _a_number(_: click.Context, __: click.Parameter, every: float) -> float:
    """Reject NaN, which passes every range check."""
    if every != every:
        raise click.BadParameter("nan is not a number of seconds.")
    return every


@click.command()
@click.argument("run", default="last")
@click.option("--task", metavar="N", help="Task of a job array [default: a running one].")
@click.option(
    "--every",
    type=click.FloatRange(min=0.2, max=86400),
    default=2.0,
    callback=_a_number,
    show_default=True,
    metavar="SECONDS",
    help="Refresh interval.",
)
@click.option("--once", is_flag=True, help="Print one screen with all rows, and exit.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print the current view of the run as JSON, and exit."
)
def top(run: str, task: str | None, every: float, once: bool, as_json: bool) -> None:
    """Watch RUN (a name, a folder, a job id or `last`): progress, loss, GPUs, the slowest rank.

    For one task of a job array: JOB_3, or --task 3.

    Keys: q quit, r ranks, n nodes, s slowest first, arrows scroll, p pause, ? help.
    """
    from allranks.runs.run_lookup import find_task

    found, chosen = find_task(run, task)
    if as_json:
        import json

        from allranks.observe.top.live_view import view_once
        from allranks.observe.view.view_json import view_record

        click.echo(json.dumps(view_record(view_once(found, chosen)), indent=2))
        return
    from allranks.observe.top.live_view import is_live_terminal, print_page, view_once, watch_run

    if once or not is_live_terminal():
        print_page(view_once(found, chosen))
    else:
        watch_run(found, every, chosen)
