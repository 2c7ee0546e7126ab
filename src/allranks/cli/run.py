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
    import os
    import re

    if not re.fullmatch(r"all|\d+(,\d+)*", parameters["show"]):
        raise click.BadParameter("write all, 0 or 0,3", param_hint="--show")
    allocation = None
    if "SLURM_JOB_ID" in os.environ:
        from allranks.schedulers.slurm import allocation_layer

        allocation = allocation_layer(dict(os.environ))
    code = _run_in_allocation(parameters, allocation) if allocation else _run_locally(parameters)
    raise click.exceptions.Exit(code)


def _run_locally(parameters: dict[str, Any]) -> int:
    from allranks.cli.planning import job_python, make_plan
    from allranks.schedulers.activation import left_alone
    from allranks.schedulers.local import local_gpus, machine_layer, start_here

    plan = make_plan(parameters, "local", between=(machine_layer(local_gpus()),))
    if note := left_alone(plan):
        click.echo(f"{click.style('note:', fg='yellow')} {note}", err=True)
    folder, code = start_here(plan, plan.job.python or job_python(), show=parameters["show"])
    _print_run_folder(folder)
    return code


def _run_in_allocation(parameters: dict[str, Any], allocation: Any) -> int:
    from allranks.cli.planning import make_plan
    from allranks.schedulers.slurm import start_in_allocation

    plan = make_plan(parameters, "slurm", between=(allocation,))
    folder, code = start_in_allocation(plan)
    _print_run_folder(folder)
    return code


def _print_run_folder(folder: Any) -> None:
    click.echo(f"run folder  {folder.path}\nlogs        allranks logs {folder.id}", err=True)
