"""allranks script: print the job script."""

from __future__ import annotations

import os
from typing import Any

import click

from allranks.cli.job_options import JobCommand, job_options


@click.command(
    cls=JobCommand,
    common=(
        "nodes", "gpus_per_node", "time", "partition", "account", "name", "launcher", "requeue",
        "venv", "modules", "env", "config", "run_dir", "as_json", "explain", "help",
    ),
)  # fmt: skip
@job_options
@click.option("--run-dir", metavar="DIR", help="Run folder to use [default: the job creates one].")
@click.option("--json", "as_json", is_flag=True, help="Print the script and the plan as JSON.")
def script(**parameters: Any) -> None:
    """Print the job script that `submit` would send. Needs no Slurm.

    \b
        allranks script --nodes 2 --gpus-per-node 4 --time 2h train.py --lr 0.1 > job.sh
    """
    from allranks.cli.planning import made_by, make_plan
    from allranks.job.sbatch import render
    from allranks.schedulers import get_scheduler

    plan = make_plan(parameters, get_scheduler("slurm"))
    run_dir = parameters["run_dir"]
    text = render(plan, made_by=made_by(), run_dir=os.path.abspath(run_dir) if run_dir else None)  # noqa: PTH100
    if parameters["as_json"]:
        import json

        from allranks.job.plan_record import plan_record

        click.echo(json.dumps({"script": text, **plan_record(plan)}, indent=2))
    else:
        click.echo(text, nl=False)
