"""allranks check: check on this cluster what a training relies on."""

from __future__ import annotations

import sys
from typing import Any

import click

from allranks.cli.job_options import JobCommand, job_options


def _without_own(function: Any) -> Any:
    """Drop the script and the job's --signal, which selects the check here."""
    kept = [each for each in function.__click_params__ if each.name not in ("signal", "command")]
    function.__click_params__ = kept
    return function


@click.command(
    cls=JobCommand,
    common=(
        "signal", "nodes", "gpus_per_node", "partition", "account", "time", "launcher", "nprocs",
        "as_json", "help",
    ),
)  # fmt: skip
@click.option(
    "--signal", is_flag=False, flag_value="", default=None, metavar="[SIGNAL@SECONDS]",
    help="Check that the signal before the time limit reaches every rank [default: USR1@20].",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@_without_own
@job_options
def check(signal: str | None, as_json: bool, **parameters: Any) -> None:
    """Check on this cluster what a training relies on. Without an option, list the checks.

    The job options are those of `allranks submit`. Without Slurm the check runs on this machine.

    \b
        allranks check --signal --partition gpu --nodes 2 --launcher torchrun
    """
    if signal is None:
        from allranks.observe.check import CHECKS

        for name, text in CHECKS.items():
            click.echo(f"  allranks check --{name}   {text}")
        return
    found = _on_slurm(signal, parameters) if _has_slurm() else _here(parameters)
    _show(found, as_json)
    raise click.exceptions.Exit(0 if found.ok else 1)


def _has_slurm() -> bool:
    """Return whether a Slurm controller answers."""
    from allranks.cluster.slurm.commands import run_slurm
    from allranks.errors import MissingDependencyError, SlurmError

    try:
        run_slurm(["scontrol", "ping"], timeout=10)
    except (MissingDependencyError, SlurmError):
        click.echo("No Slurm controller answers: checking this machine only.", err=True)
        return False
    return True


def _on_slurm(signal: str, parameters: dict[str, Any]) -> Any:
    from allranks.cli.planning import made_by, make_plan
    from allranks.observe.check.signal_check import (
        DEFAULT,
        MODULE,
        check_on_slurm,
        early_signal,
        save_result,
    )
    from allranks.schedulers import get_scheduler

    early_signal(signal or DEFAULT)
    job = {
        "command": (MODULE,), "module": True, "name": "check-signal", "signal": signal or DEFAULT,
        "snapshot": "off", "requeue": False, "time": parameters["time"] or "1m",
    }  # fmt: skip
    scheduler = get_scheduler("slurm")
    plan = make_plan(parameters | job, scheduler, detect=True)
    submitted = scheduler.start(plan, made_by=made_by(), python=None)
    click.echo(f"Submitted job {submitted.job_id}; Ctrl-C cancels it.", err=True)
    with _StatusLine() as line:
        found = check_on_slurm(plan, submitted.run, submitted.job_id, line.update)
    save_result(found, submitted.run)
    return found


def _here(parameters: dict[str, Any]) -> Any:
    import tempfile
    from pathlib import Path

    from allranks.cli.planning import make_plan
    from allranks.observe.check.signal_check import MODULE, check_locally
    from allranks.schedulers import get_scheduler

    size = parameters["nprocs"] or "2"
    words = ["--nprocs", str(size)]
    if parameters["launcher"]:
        words += ["--launcher", parameters["launcher"]]
    job = {"command": (MODULE,), "module": True, "nprocs": str(size)}
    plan = make_plan(parameters | job, get_scheduler("local"))
    with tempfile.TemporaryDirectory(prefix="allranks-check-") as folder, _StatusLine() as line:
        return check_locally(
            words, plan.launcher.name, plan.shape.world_size, Path(folder), line.update
        )


class _StatusLine:
    """Print the progress in one line that is overwritten, or as plain lines without a terminal."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._last = ""

    def __enter__(self) -> _StatusLine:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            click.echo("\r\033[K", nl=False, err=True)

    def update(self, text: str) -> None:
        if self._live:
            click.echo(f"\r\033[K{text}", nl=False, err=True)
        elif text.partition(",")[0] != self._last:
            self._last = text.partition(",")[0]
            click.echo(text, err=True)


def _show(found: Any, as_json: bool) -> None:
    from allranks.observe.check.signal_check import result_advice, result_table

    if as_json:
        import json

        click.echo(json.dumps(found.record()))
        return
    for row in result_table(found):
        click.echo(row)
    for line in result_advice(found):
        click.echo(line)
