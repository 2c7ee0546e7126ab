"""allranks run: start here, or across the allocation around."""

from __future__ import annotations

from typing import Any

import click

from allranks.cli.job_options import JobCommand, job_options


@click.command(cls=JobCommand)
@job_options
@click.option("--show", default="all", metavar="RANKS", help="Ranks to show: all, 0, 0,3 [all].")
def run(**parameters: Any) -> None:
    """Run a training script here: on every GPU of this machine, or as many ranks as --nprocs says.

    Inside an allocation (salloc) it runs across the allocation.

    \b
        allranks run train.py --lr 0.1
        allranks run --nprocs 4 --launcher torchrun train.py
    """
    import os
    import re

    if not re.fullmatch(r"all|\d+(,\d+)*", parameters["show"]):
        raise click.BadParameter("write all, 0 or 0,3", param_hint="--show")
    allocation = None
    if "SLURM_JOB_ID" in os.environ:
        from allranks.schedulers.slurm import allocation_layer

        allocation = allocation_layer(dict(os.environ))
    code = _across(parameters, allocation) if allocation else _here(parameters)
    raise click.exceptions.Exit(code)


def _here(parameters: dict[str, Any]) -> int:
    from allranks.cli.planning import job_python, make_plan
    from allranks.schedulers.activation import left_alone
    from allranks.schedulers.local import local_gpus, machine_layer, start_here

    plan = make_plan(parameters, "local", between=(machine_layer(local_gpus()),))
    if note := left_alone(plan):
        click.echo(f"{click.style('note:', fg='yellow')} {note}", err=True)
    folder, code = start_here(plan, plan.job.python or job_python(), show=parameters["show"])
    _say_where(folder)
    return code


def _across(parameters: dict[str, Any], allocation: Any) -> int:
    from allranks.cli.planning import make_plan
    from allranks.schedulers.slurm import start_in_allocation

    plan = make_plan(parameters, "slurm", between=(allocation,))
    folder, code = start_in_allocation(plan)
    _say_where(folder)
    return code


def _say_where(folder: Any) -> None:
    click.echo(f"run folder  {folder.path}\nlogs        allranks logs {folder.id}", err=True)
