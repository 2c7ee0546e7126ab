"""``allranks frameworks``: what is in a Python, and Horovod built for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import RenderableType

    from allranks.integrations.frameworks.inventory import Framework, Inventory

WORDS = {"gloo": "gloo", "mpi": "MPI", "nccl": "NCCL", "cuda": "CUDA", "rocm": "ROCm"}


def _which(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say which Python is meant."""
    python = click.option(
        "--python", metavar="PATH", help="The Python to look at [default: the one that jobs use]."
    )
    venv = click.option("--venv", metavar="PATH", help="The same, as the folder of a venv.")
    return python(venv(command))


@click.group(invoke_without_command=True)
@_which
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def frameworks(context: click.Context, python: str | None, venv: str | None, as_json: bool) -> None:
    """Which frameworks a Python has, what they were built with, and what is missing.

    \b
        allranks frameworks --venv ~/envs/train
        allranks frameworks install horovod
    """
    context.obj = (python, venv)
    if context.invoked_subcommand is not None:
        return
    from allranks.integrations.frameworks.inventory import take

    found = take(_target(python, venv))
    if as_json:
        import json

        click.echo(json.dumps(found.as_data(), indent=2))
    else:
        _print(found)


def _target(python: str | None, venv: str | None) -> Any:
    from allranks.cli.planning import job_python
    from allranks.integrations.frameworks.target import choose_python, look_into

    return look_into(choose_python(python, venv, job_python()))


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
    if found.target.managed:
        from allranks.integrations.frameworks.missing import pip_forbidden

        console.print(f"\n{pip_forbidden(found.target)}", style="yellow", soft_wrap=True)
    for title in ("Missing", "Not there"):
        rows = [each for each in found.frameworks if bool(each.version) is (title == "Missing")]
        _commands(console, title, rows, f"{found.target.new_venv} && ")


def _table(rows: list[Framework]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    if not rows:
        return Text("No framework is there.")
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
    """What it was built with, in a few words."""
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


def _commands(console: Any, title: str, rows: list[Framework], told: str) -> None:
    """Each thing that is missing, and below it what to type, less what was told above."""
    lines = [(each.name, one) for each in rows for one in each.missing]
    if not lines:
        return
    console.print(f"\n{title}", style="bold")
    for name, one in lines:
        if title == "Missing":
            console.print(f"{name}: {one.what}", style="yellow")
        lead = "    " if title == "Missing" else f"{name:<14}"
        console.print(f"{lead}{one.command.removeprefix(told)}", soft_wrap=True)


@frameworks.group()
def install() -> None:
    """Build and install what pip alone cannot: Horovod."""


@install.command()
@_which
@click.option(
    "--with", "parts", type=click.Choice(["auto", "torch", "tensorflow", "both"]), default="auto",
    show_default=True, help="The framework to build it for; auto: those that are there.",
)  # fmt: skip
@click.option(
    "--mpi/--no-mpi", default=None, help="With MPI, or gloo alone [default: MPI where mpi.h is]."
)
@click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing.")
@click.option(
    "--force", is_flag=True, help="Build it anew, even if it is there or was built before."
)
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
    """Build Horovod 0.28.1 for the torch or TensorFlow of a Python, and install it there.

    Takes 4 to 10 minutes the first time; the wheel is kept in ~/.cache/allranks/wheels and taken
    from there the next time. With CUDA, NCCL's headers and nvcc it is built for NCCL (not tried
    on GPUs by our tests).

    \b
        allranks frameworks install horovod --venv ~/envs/train
        allranks frameworks install horovod --with torch --no-mpi
    """
    from allranks.cli.install_progress import progress, show_plan
    from allranks.integrations.frameworks.horovod_install import already_there, install
    from allranks.integrations.frameworks.horovod_plan import VERSION, plan_horovod

    target = _target(*((python, venv) if python or venv else context.obj))
    plan = plan_horovod(target, parts, mpi)
    if dry_run:
        show_plan(plan, force)
        return
    if not force and (said := already_there(plan)):
        click.echo(f"Horovod {VERSION} is there already: {_built(plan.parts, said)}.")
        return
    for note in plan.notes:
        click.echo(f"{click.style('note:', fg='yellow')} {note}", err=True)
    with progress() as tell:
        said = install(plan, tell, force=force)
    click.echo(f"Horovod {VERSION} works in {target.python}: {_built(plan.parts, said)}.")


def _built(parts: list[str], said: dict[str, Any]) -> str:
    words = [name for key, name in WORDS.items() if said.get(key)]
    return f"for {' and '.join(parts)}, with {', '.join(words)}"
