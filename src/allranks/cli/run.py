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

    from allranks.schedulers.slurm import allocation_layer

    allocation = allocation_layer(dict(os.environ))
    code = _across(parameters, allocation) if allocation else _here(parameters)
    raise click.exceptions.Exit(code)


def _here(parameters: dict[str, Any]) -> int:
    from allranks.cli.planning import job_python, make_plan, show_explanation, show_notes
    from allranks.job.layers import Layer
    from allranks.schedulers.folder import keep_allranks, keep_code, make_run
    from allranks.schedulers.local import Console, local_gpus, run_local

    gpus = local_gpus()
    machine = Layer("this machine", {"gpus_per_node": str(gpus)} if gpus else {})
    plan = make_plan(parameters, "local", between=(machine,))
    if parameters["explain"]:
        show_explanation(plan)
    show_notes(plan)
    folder = make_run(plan, "local")
    keep_allranks(folder)
    plan, _ = keep_code(plan, folder, "reference")
    from dataclasses import replace

    python = plan.job.python or job_python()
    plan = replace(plan, job=replace(plan.job, python=python))
    code = run_local(plan, folder, python, Console(show=parameters["show"]))
    _say_where(folder)
    return code


def _across(parameters: dict[str, Any], allocation: Any) -> int:
    import subprocess

    from allranks.cli.planning import make_plan, show_explanation, show_notes
    from allranks.runs.files import write_text
    from allranks.schedulers.folder import keep_allranks, keep_code, make_run
    from allranks.schedulers.slurm import allocation_script, script_path

    plan = make_plan(parameters, "slurm", between=(allocation,))
    if parameters["explain"]:
        show_explanation(plan)
    show_notes(plan)
    folder = make_run(plan, "slurm")
    keep_allranks(folder)
    plan, _ = keep_code(plan, folder, "reference")
    write_text(script_path(folder), allocation_script(plan, folder))
    code = subprocess.run(["bash", str(script_path(folder))], check=False).returncode
    _say_where(folder)
    return code if code >= 0 else 128 - code


def _say_where(folder: Any) -> None:
    click.echo(f"run folder: {folder.path}   logs: allranks logs {folder.id}", err=True)
