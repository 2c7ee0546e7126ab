"""From the options of a command to a plan, for run, submit and script."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from allranks.cli.job_options import given_values
from allranks.core.redaction import redact_words
from allranks.core.shell import join
from allranks.job.plan import Plan
from allranks.job.plan_record import explain
from allranks.schedulers.base import Scheduler


def make_plan(parameters: dict[str, Any], scheduler: Scheduler, *, detect: bool = False) -> Plan:
    """Return the plan of the options; print its notes, and with --explain its values, on stderr."""
    plan = scheduler.plan(given_values(parameters), config=parameters.get("config"), detect=detect)
    if parameters.get("explain"):
        show_explanation(plan)
    elif sys.stderr.isatty() and (chosen := plan.origins.get("launcher")) and chosen.why:
        click.secho(f"launcher {plan.launcher.name}: {chosen.why}", dim=True, err=True)
    for note in plan.notes:
        click.echo(f"{click.style('note:', fg='yellow')} {note}", err=True)
    return plan


def show_explanation(plan: Plan) -> None:
    """Print each value with its origin."""
    rows = explain(plan)
    width = max((len(name) for name, _, _ in rows), default=0)
    value_width = min(max((len(value) for _, value, _ in rows), default=0), 28)
    for name, value, origin in rows:
        if len(value) > value_width:
            click.echo(f"{name:<{width}}  {value}", err=True)
            name = value = ""
        click.echo(f"{name:<{width}}  {value:<{value_width}}  {origin}", err=True)


def made_by() -> str:
    """Return the command line, for the head of the script."""
    return join(["allranks", *redact_words(sys.argv[1:])])


def job_python() -> str:
    """Return the interpreter of jobs here: the activated environment's, else the command's own."""
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        prefix = os.environ.get(variable)
        if prefix and (Path(prefix) / "bin/python").exists():
            return str(Path(prefix) / "bin/python")
    return sys.executable
