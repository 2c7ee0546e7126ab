"""allranks run: start a training on this machine or in the current allocation."""

from __future__ import annotations

from typing import Any

import click

from allranks.cli.job_options import JobCommand, job_options


@click.command(
    cls=JobCommand,
    common=(
        "nprocs", "gpus_per_node", "launcher", "module", "env", "venv", "container", "restarts",
        "show", "config", "explain", "help",
    ),
)  # fmt: skip
@job_options
@click.option(
    "--show",
    default="all",
    metavar="RANKS",
    help="Ranks whose output is shown: all, 0, 0,3 [default: all].",
)
def run(**parameters: Any) -> None:
    """Run a training script on this machine: one rank per GPU, or --nprocs ranks.

    Inside an allocation (salloc) it runs on all nodes of the allocation.

    \b
        allranks run train.py --lr 0.1
        allranks run --nprocs 4 --launcher torchrun train.py
    """
    import re

    from allranks.cli.planning import job_python, make_plan
    from allranks.schedulers import foreground_scheduler

    if not re.fullmatch(r"all|\d+(,\d+)*", parameters["show"]):
        raise click.BadParameter("write all, 0 or 0,3", param_hint="--show")
    scheduler = foreground_scheduler()
    plan = make_plan(parameters, scheduler)
    python = plan.job.python or job_python()
    started = scheduler.start(plan, python=python, show=parameters["show"])
    folder = started.run
    click.echo(f"run folder  {folder.path}\nlogs        allranks logs {folder.id}", err=True)
    raise click.exceptions.Exit(started.exit_code or 0)
