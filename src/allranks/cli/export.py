"""allranks export: export the metrics of a run for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from allranks.runs.run_folder import Run


@click.group()
def export() -> None:
    """Export the metrics of a run to Prometheus, Grafana, TensorBoard or CSV."""


@export.command()
@click.argument("runs", nargs=-1, metavar="[RUN]…")
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.prom",
    help="File to write atomically [default: print].",
)
@click.option(
    "--every",
    metavar="TIME",
    help="Rewrite the file at this interval (15s, 1m) until the runs end.",
)
@click.option("--openmetrics", is_flag=True, help="Use the OpenMetrics format.")
def prometheus(
    runs: tuple[str, ...], output: Path | None, every: str | None, openmetrics: bool
) -> None:
    """Print the current metrics of RUNs [default: last] for Prometheus.

    For the textfile collector of the node exporter, while the runs are active:

    \b
        allranks export prometheus train --every 15s \\
            --output /var/lib/node_exporter/textfile/train.prom
    """
    from allranks.errors import UsageError
    from allranks.observe.export.prometheus import metrics_text, poll_runs, write_textfile
    from allranks.runs.run_lookup import find_run

    if every is not None and output is None:
        raise UsageError("--every needs a file to rewrite: add --output FILE.prom.")
    found = [find_run(name) for name in runs or ("last",)]
    for run_views in poll_runs(found, None if every is None else _seconds(every)):
        text = metrics_text(run_views, openmetrics)
        if output is None:
            click.echo(text, nl=False)
        else:
            write_textfile(output, text)


@export.command()
def grafana() -> None:
    """Print a Grafana dashboard for the metrics of `export prometheus`, as JSON to import."""
    import json

    from allranks.observe.export.grafana import dashboard

    click.echo(json.dumps(dashboard(), indent=2))


@export.command()
@click.argument("run", default="last")
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Folder for the event files [default: tensorboard-export in the run folder].",
)
def tensorboard(run: str, output: Path | None) -> None:
    """Write event files of RUN: metrics by step, nodes and GPUs by time. Replaces earlier ones."""
    from shlex import quote

    from allranks.observe.export.run_tables import export_events
    from allranks.runs.run_lookup import find_run

    found = find_run(run)
    written = export_events(found, output)
    if not written:
        click.echo(f"{found.id} has no metrics yet. State: allranks ps {found.id}", err=True)
        return
    for path, count in written.items():
        click.echo(f"{path}  {count} values")
    folder = quote(str(next(iter(written)).parent))
    click.echo(f"View them with: tensorboard --logdir {folder}", err=True)


@export.command()
@click.argument("run", default="last")
@click.argument("table", required=False)
def csv(run: str, table: str | None) -> None:
    """Print a table of RUN as CSV: train, epoch, val, test, nodes, gpus or ranks."""
    import sys

    from allranks.observe.export.run_tables import write_csv

    found, wanted = _run_and_table(run, table)
    if not write_csv(found, wanted, sys.stdout):
        click.echo(f"{found.id} has no rows in table {wanted} yet.", err=True)


def _run_and_table(run: str, table: str | None) -> tuple[Run, str]:
    """Resolve the run and the table; a single word that is no run may be a table of the last run."""
    from allranks.errors import RunNotFoundError
    from allranks.runs.metrics_tables import TABLES
    from allranks.runs.run_lookup import find_run

    try:
        return find_run(run), table or "train"
    except RunNotFoundError:
        if table or run not in TABLES:
            raise
        return find_run("last"), run


def _seconds(text: str) -> float:
    """Parse an interval such as ``15s`` or ``1m``; a bare number is seconds."""
    from allranks.core.units import parse_time
    from allranks.errors import UsageError

    try:
        seconds = float(text)
    except ValueError:
        seconds = parse_time(text)
    if not seconds < float("inf"):
        raise UsageError(f"--every {text} is not an interval. Write 15s or 1m.")
    if seconds < 1:
        raise UsageError(f"--every {text} is less than a second. Write 15s or 1m.")
    return seconds
