"""``allranks sandbox``: a real Slurm cluster on this machine."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

_name = click.option(
    "--name", "-n", default="default", show_default=True, help="Which sandbox is meant."
)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def sandbox() -> None:
    """A real Slurm cluster on this machine, to try jobs on.

    Runs the distribution's own Slurm, as root or as you, in one directory.
    """


def _up_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options that describe a cluster."""
    for option in reversed(
        [
            click.option("--nodes", "-N", default=2, show_default=True, help="Nodes."),
            click.option("--cpus", default=8, show_default=True, help="CPUs of a node."),
            click.option("--memory", default=4000, show_default=True, help="MiB of a node."),
            click.option("--gpus", default=4, show_default=True, help="Fake GPUs of a node."),
            click.option(
                "--gpu-type", default="a100", show_default=True, help="Their type; '' for none."
            ),
            click.option(
                "--gpu-env",
                type=click.Choice(["nvidia", "amd"]),
                default="nvidia",
                show_default=True,
                help="Whose variables jobs get.",
            ),
            click.option(
                "--isolation",
                type=click.Choice(["auto", "plain", "hosts", "network"]),
                default="auto",
                show_default=True,
                help="plain: shared machine; hosts: own hostname and processes; network: own "
                "network too (root); auto: hosts where possible.",
            ),
            click.option("--accounting", is_flag=True, help="Run a database, so that sacct works."),
            click.option(
                "--grace",
                default=0,
                show_default=True,
                help="Seconds that a preempted job keeps after its signal.",
            ),
            click.option("--port", type=int, help="First of 128 ports.  [default: a free block]"),
            click.option(
                "--set",
                "settings",
                multiple=True,
                metavar="KEY=VALUE",
                help="A line of slurm.conf, instead of ours. Repeatable.",
            ),
        ]
    ):
        command = option(command)
    return command


@sandbox.command()
@_name
@click.option(
    "--directory", type=click.Path(path_type=Path), help="Where to keep it.  [default: in /tmp]"
)
@click.option("--replace", is_flag=True, help="Stop a running sandbox of this name first.")
@_up_options
@_json
def up(
    name: str,
    directory: Path | None,
    replace: bool,
    settings: tuple[str, ...],
    as_json: bool,
    **config: Any,
) -> None:
    """Start a cluster and wait until its nodes are idle."""
    from allranks.cluster.sandbox import Sandbox, SandboxConfig
    from allranks.cluster.sandbox import sandbox_summary as describe

    began = time.monotonic()
    pairs = dict(_setting(text) for text in settings)
    cluster = Sandbox.up(
        directory, SandboxConfig(**config, settings=pairs), name=name, replace=replace
    )
    if as_json:
        click.echo(json.dumps({**cluster.status().as_dict(), "env": cluster.env}, indent=2))
    else:
        click.echo(describe.started(cluster, time.monotonic() - began))


@sandbox.command()
@_name
@click.option("--all", "everything", is_flag=True, help="Stop all of your sandboxes.")
def down(name: str, everything: bool) -> None:
    """Stop a cluster and remove all of it. Does nothing when there is none."""
    from allranks.cluster.sandbox import list_sandboxes

    found = [cluster for cluster in list_sandboxes() if everything or cluster.name == name]
    for cluster in found:
        cluster.down()
        click.echo(f"Sandbox '{cluster.name}' is down; nothing is left in {cluster.directory}.")
    if not found:
        click.echo("There is no sandbox." if everything else f"There is no sandbox '{name}'.")


@sandbox.command()
@_name
@_json
def status(name: str, as_json: bool) -> None:
    """Show nodes, jobs and daemons."""
    from allranks.cluster.sandbox import Sandbox
    from allranks.cluster.sandbox import sandbox_summary as describe

    state = Sandbox.open(name).status()
    click.echo(json.dumps(state.as_dict(), indent=2) if as_json else describe.status(state))


@sandbox.command("list")
@_json
def list_(as_json: bool) -> None:
    """Show all of your sandboxes."""
    from allranks.cluster.sandbox import list_sandboxes
    from allranks.cluster.sandbox import sandbox_summary as describe

    states = [cluster.status() for cluster in list_sandboxes()]
    if as_json:
        click.echo(json.dumps([state.as_dict() for state in states], indent=2))
    else:
        click.echo(describe.listing(states))


@sandbox.command("kill-node")
@click.argument("node")
@_name
def kill_node(node: str, name: str) -> None:
    """Power NODE off: all its processes die at once."""
    from allranks.cluster.sandbox import Sandbox

    if Sandbox.open(name).kill_node(node):
        click.echo(f"{node} is off. Slurm notices within about 20 s; then its jobs are requeued.")
    else:
        click.echo(f"{node} was off already.")


@sandbox.command("start-node")
@click.argument("node")
@_name
def start_node(node: str, name: str) -> None:
    """Switch NODE on again."""
    from allranks.cluster.sandbox import Sandbox

    started = Sandbox.open(name).start_node(node)
    click.echo(f"{node} is on and takes jobs." if started else f"{node} was on already.")


@sandbox.command()
@_name
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def shell(name: str, command: tuple[str, ...]) -> None:
    """Open a shell whose Slurm is the sandbox, or run COMMAND there.

    \b
    allranks sandbox shell
    allranks sandbox shell -- srun -N2 hostname
    """
    from allranks.cluster.sandbox import Sandbox
    from allranks.errors import SandboxError

    cluster = Sandbox.open(name)
    argv = cluster.shell(command)
    try:
        os.execvpe(argv[0], argv, cluster.environ())
    except OSError as error:
        raise SandboxError(
            f"The sandbox was asked to run {argv[0]!r}: {error.strerror}.\n"
            "Give a program that is on PATH, or set SHELL."
        ) from error


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise click.BadParameter(f"{text!r} is not KEY=VALUE", param_hint="--set")
    return key.strip(), value.strip()
