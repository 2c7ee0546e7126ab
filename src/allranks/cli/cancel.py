"""allranks cancel: cancel runs."""

from __future__ import annotations

import click


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN…")
@click.option("--json", "as_json", is_flag=True, help="Print what was done as JSON.")
def cancel(runs: tuple[str, ...], as_json: bool) -> None:
    """Cancel one or more runs: a name, a folder, a job id or `last`."""
    from allranks.runs.run_lookup import find_run
    from allranks.schedulers import scheduler_of

    found = [find_run(reference) for reference in runs]
    done = [(run.id, scheduler_of(run).cancel(run)) for run in found]
    if as_json:
        import json

        click.echo(json.dumps([{"run": run, "did": did} for run, did in done]))
    else:
        for run, did in done:
            click.echo(f"{run}: {did}")
