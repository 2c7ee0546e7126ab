"""allranks frameworks: list the installed frameworks, and build Horovod."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import RenderableType

    from allranks.integrations.frameworks.horovod_build import OnProgress
    from allranks.integrations.frameworks.horovod_plan import HorovodPlan
    from allranks.integrations.frameworks.inventory import Framework, Inventory

WORDS = {"gloo": "gloo", "mpi": "MPI", "nccl": "NCCL", "cuda": "CUDA", "rocm": "ROCm"}


def _which(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select a Python environment."""
    python = click.option(
        "--python",
        metavar="PATH",
        help="Python interpreter to inspect [default: the one that jobs use].",
    )
    venv = click.option("--venv", metavar="PATH", help="Virtual environment to inspect.")
    return python(venv(command))


@click.group(invoke_without_command=True)
@_which
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def frameworks(context: click.Context, python: str | None, venv: str | None, as_json: bool) -> None:
    """Show which frameworks are installed, how they were built, and what is missing.

    \b
        allranks frameworks --venv ~/envs/train
        allranks frameworks install horovod
    """
    context.obj = (python, venv)
    if context.invoked_subcommand is not None:
        return
    from allranks.integrations.frameworks.inventory import take_inventory

    found = take_inventory(_target(python, venv))
    if as_json:
        import json

        click.echo(json.dumps(found.as_data(), indent=2))
    else:
        _print(found)


def _target(python: str | None, venv: str | None) -> Any:
    from allranks.cli.planning import job_python
    from allranks.integrations.frameworks.python_environment import choose_python, probe_python

    return probe_python(choose_python(python, venv, job_python()))


def _print(found: Inventory) -> None:
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    console.print(f"{found.target.python} (Python {found.target.about['version']})", soft_wrap=True)
    console.print()
    console.print(_table([each for each in found.frameworks if each.version]))
    tools = [each.title for each in found.tools.compilers.values() if each]
    headers = found.tools.mpi_headers
    tools += [f"mpi.h of {headers.title}"] if headers else []
    console.print(f"\nTo build with: {', '.join(tools) or 'nothing'}.")
    if found.tools.mpirun:
        console.print(f"mpirun is {found.tools.mpirun.path}", soft_wrap=True)
    if found.target.is_managed:
        from allranks.integrations.frameworks.missing_requirements import pip_forbidden

        console.print(f"\n{pip_forbidden(found.target)}", style="yellow", soft_wrap=True)
    for title in ("Missing", "Not installed"):
        rows = [each for each in found.frameworks if bool(each.version) is (title == "Missing")]
        _commands(console, title, rows, f"{found.target.new_venv} && ")


def _table(rows: list[Framework]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    if not rows:
        return Text("No framework is installed.")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("FRAMEWORK", "VERSION"):
        table.add_column(title, no_wrap=True)
    table.add_column("WITH", ratio=1, overflow="fold")
    table.add_column("LAUNCHERS", ratio=1, overflow="fold")
    for each in rows:
        style = "yellow" if each.missing else ""
        table.add_row(
            Text(each.name, style=style), each.version, _with(each), " ".join(each.launchers)
        )
    return table


def _with(framework: Framework) -> str:
    """Describe what the framework was built with."""
    parts = framework.parts
    words = [name if parts[key] is True else f"{name} {parts[key]}"
             for key, name in WORDS.items() if parts.get(key)]  # fmt: skip
    if framework.name == "torch" and not (parts["cuda"] or parts["rocm"]):
        words.insert(0, "CPU")
    words += [
        f"{key} {parts[key]}"
        for key in ("torch", "tensorflow", "keras", "tf_keras")
        if parts.get(key)
    ]
    words += [str(parts[key]) for key in ("kind", "library") if parts.get(key)]
    return ", ".join(words)


def _commands(console: Any, title: str, rows: list[Framework], prefix: str) -> None:
    """Print each missing part and the command that installs it, without the prefix printed before."""
    lines = [(each.name, one) for each in rows for one in each.missing]
    if not lines:
        return
    console.print(f"\n{title}", style="bold")
    for name, one in lines:
        if title == "Missing":
            console.print(f"{name}: {one.what}", style="yellow")
        lead = "    " if title == "Missing" else f"{name:<14}"
        console.print(f"{lead}{one.command.removeprefix(prefix)}", soft_wrap=True)


@frameworks.group()
def install() -> None:
    """Build and install Horovod, which pip alone cannot."""


@install.command()
@_which
@click.option(
    "--with", "parts", type=click.Choice(["auto", "torch", "tensorflow", "both"]), default="auto",
    show_default=True, help="Framework to build for; auto: those that are installed.",
)  # fmt: skip
@click.option(
    "--mpi/--no-mpi",
    default=None,
    help="Build with MPI, or with gloo only [default: MPI if mpi.h is found].",
)
@click.option("--dry-run", is_flag=True, help="Show what would be done.")
@click.option("--force", is_flag=True, help="Build again, even if it is installed or cached.")
@click.pass_context
def horovod(
    context: click.Context,
    python: str | None,
    venv: str | None,
    parts: str,
    mpi: bool | None,
    dry_run: bool,
    force: bool,
) -> None:
    """Build Horovod 0.28.1 for the installed torch or TensorFlow, and install it.

    The first build takes 4 to 10 minutes; the wheel is cached in ~/.cache/allranks/wheels. With
    CUDA, NCCL's headers and nvcc it is built for NCCL (not tested on GPUs).

    \b
        allranks frameworks install horovod --venv ~/envs/train
        allranks frameworks install horovod --with torch --no-mpi
    """
    from allranks.cli.frameworks import progress, show_plan
    from allranks.integrations.frameworks.horovod_install import install, installed_build
    from allranks.integrations.frameworks.horovod_plan import VERSION, plan_horovod

    target = _target(*((python, venv) if python or venv else context.obj))
    plan = plan_horovod(target, parts, mpi)
    if dry_run:
        show_plan(plan, force)
        return
    if not force and (said := installed_build(plan)):
        click.echo(f"Horovod {VERSION} is already installed: {_built(plan.parts, said)}.")
        return
    for note in plan.notes:
        click.echo(f"{click.style('note:', fg='yellow')} {note}", err=True)
    with progress() as tell:
        said = install(plan, tell, force=force)
    click.echo(f"Horovod {VERSION} works in {target.python}: {_built(plan.parts, said)}.")


def _built(parts: list[str], said: dict[str, Any]) -> str:
    words = [name for key, name in WORDS.items() if said.get(key)]
    return f"for {' and '.join(parts)}, with {', '.join(words)}"


STEP = 10
"""Percent between two plain lines of the same stage."""


@contextmanager
def progress() -> Iterator[OnProgress]:
    """Yield a function that shows each stage: one changing line on a terminal, else plain lines."""
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
    """Print a line for each stage, and for every tenth of a long one."""

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
    """Print what an installation would do."""
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
