"""How an installation is shown: one line that changes on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from allranks.integrations.frameworks.horovod_build import Tell
    from allranks.integrations.frameworks.horovod_plan import HorovodPlan

STEP = 10
"""Percent between two plain lines of the same stage."""


@contextmanager
def progress() -> Iterator[Tell]:
    """Give each stage to the right kind of display."""
    if not sys.stderr.isatty():
        yield PlainLines()
        return
    from rich.console import Console

    console = Console(stderr=True, highlight=False, markup=False)
    with console.status("starting") as status:
        began = time.monotonic()

        def tell(stage: str, percent: int | None) -> None:
            if percent is None:
                console.print(stage, soft_wrap=True)
            clock = time.strftime("%M:%S", time.gmtime(time.monotonic() - began))
            share = "" if percent is None else f" {percent}%"
            status.update(f"{stage[:50]}{share}  {clock}")

        yield tell


class PlainLines:
    """A line for each stage, and for every tenth of a long one."""

    def __init__(self) -> None:
        self._next = 0

    def __call__(self, stage: str, percent: int | None) -> None:
        if percent is None:
            self._next = 0
            click.echo(stage, err=True)
        elif percent >= self._next:
            self._next = percent // STEP * STEP + STEP
            click.echo(f"{stage} {percent}%", err=True)


def show_plan(plan: HorovodPlan, force: bool) -> None:
    """What an installation would do."""
    from allranks.integrations.frameworks.horovod_plan import SDIST
    from allranks.integrations.frameworks.wheel_cache import find_wheel, wheels_folder

    wheel = None if force else find_wheel(plan.key)
    rows = [
        ("into", plan.target.python),
        ("for", ", ".join(f"{part} {getattr(plan, part)}" for part in plan.parts)),
        (
            "with",
            ", ".join(
                ["gloo", *([plan.mpi.title] if plan.mpi else []), *(["NCCL"] if plan.nccl else [])]
            ),
        ),
        ("wheel", str(wheel) if wheel else f"to be built: {wheels_folder() / plan.key}"),
    ]
    if wheel is None:
        rows += [("source", SDIST), *(("patch", patch.title) for patch in plan.patches)]
        rows += [("build", f"{name}={value}") for name, value in plan.variables.items()]
    rows += [("note", note) for note in plan.notes]
    for name, value in rows:
        click.echo(f"{name:<8}{value}")
