"""From the options of a verb to a plan, the same way for run, submit and script."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from allranks.cli.job_options import given_values
from allranks.errors import JobError, UsageError
from allranks.job.derive import derive, explain
from allranks.job.layers import Layer, file_layer, find_file, merge, site_layer
from allranks.job.plan import Plan
from allranks.shell import join
from allranks.site.load import find_site, load_site
from allranks.site.model import Site


def make_plan(
    parameters: dict[str, Any],
    scheduler: str,
    *,
    between: tuple[Layer, ...] = (),
    detect: bool = False,
) -> Plan:
    """Site, file, then command line; ``between`` goes under the command line (an allocation)."""
    typed = Layer("command line", given_values(parameters))
    config = parameters.get("config")
    path = Path(config) if config else find_file(Path.cwd())
    file = [file_layer(path)] if path else []
    named = next((x.values["site"] for x in (typed, *file) if x.values.get("site")), None)
    site = _site(named, detect) if scheduler == "slurm" else None
    layers = [*([site_layer(site)] if site else []), *file, *between, typed]
    job, origins = merge(layers)
    _check_script(job.script, job.chdir, bool(job.module))
    return derive(job, origins, site, scheduler)


def _site(name: str | None, detect: bool) -> Site | None:
    if name:
        return load_site(name)
    found = find_site()
    if found is None and detect:
        from allranks.site.detect import detect_site

        return detect_site()
    return found


def _check_script(script: str | None, folder: str | None, module: bool) -> None:
    """A missing file is told now, not after hours in the queue."""
    if not script or module:
        return
    path = Path(folder or ".", script)
    if path.is_dir():
        raise UsageError(f"{script} is a folder. Name the training script in it.")
    if not path.is_file() and "/" not in script and not script.endswith(".py"):
        return  # a program on the PATH of the job
    if not path.is_file():
        raise UsageError(f"There is no script {script} in {path.parent.resolve()}.")
    if script.endswith((".sh", ".slurm", ".sbatch")) and "#SBATCH" in path.read_text("utf-8", "replace"):
        raise JobError(
            f"{script} is a job script of its own (it has #SBATCH lines).\n"
            f"Submit it with: sbatch {script}\nOr name the training script that it starts."
        )


def show_explanation(plan: Plan) -> None:
    """Each value with where it came from, then the notes."""
    rows = explain(plan)
    width = max((len(name) for name, _, _ in rows), default=0)
    value_width = min(max((len(value) for _, value, _ in rows), default=0), 28)
    for name, value, origin in rows:
        if len(value) > value_width:
            click.echo(f"{name:<{width}}  {value}", err=True)
            name = value = ""
        click.echo(f"{name:<{width}}  {value:<{value_width}}  {origin}", err=True)


def show_notes(plan: Plan) -> None:
    """What the user should know, on stderr so that the output stays clean."""
    for note in plan.notes:
        click.echo(f"{click.style('note:', fg='yellow')} {note}", err=True)


def made_by() -> str:
    """The command line, for the head of the script."""
    return join(["allranks", *sys.argv[1:]])


def job_python() -> str:
    """The interpreter of jobs on this machine: the activated environment's, else the command's own."""
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        prefix = os.environ.get(variable)
        if prefix and (Path(prefix) / "bin/python").exists():
            return str(Path(prefix) / "bin/python")
    return sys.executable
