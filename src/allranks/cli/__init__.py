"""The command. Each verb is one thin file: read the options, make one library call, print."""

from __future__ import annotations

import importlib
import sys

import click

from allranks._version import __version__
from allranks.errors import AllranksError

VERBS = {
    "run": (
        "allranks.cli.run",
        "Run a training script here: this machine, or the allocation around.",
    ),
    "submit": ("allranks.cli.submit", "Submit a training script to Slurm."),
    "script": ("allranks.cli.script", "Print the job script, without Slurm."),
    "lint": ("allranks.cli.lint", "Say what will go wrong with a job script, and mend it."),
    "convert": ("allranks.cli.convert", "Turn a job script into an allranks.toml."),
    "ps": ("allranks.cli.ps", "List runs and their states."),
    "logs": ("allranks.cli.logs", "Show a run's logs: merged by time, or of some ranks."),
    "top": ("allranks.cli.top", "Watch a run: progress, loss, GPUs, the slowest rank."),
    "web": ("allranks.cli.web", "Watch runs in a browser: plots, logs, attempts, comparisons."),
    "report": (
        "allranks.cli.report",
        "A run on one page: what was asked for, what was used, what to change.",
    ),
    "export": ("allranks.cli.export", "A run's numbers for Prometheus, Grafana, TensorBoard."),
    "scale": ("allranks.cli.scale", "Measure how a training scales: 1, 2, 4 … processes or nodes."),
    "resume": ("allranks.cli.resume", "Go on with a run that ended before it had finished."),
    "checkpoints": (
        "allranks.cli.checkpoints",
        "List a run's checkpoints, verify them, export the weights.",
    ),
    "cancel": ("allranks.cli.cancel", "End a run."),
    "check": ("allranks.cli.check", "Prove on this cluster what a training relies on: signals."),
    "sites": ("allranks.cli.sites", "Show, write and detect sites: what a cluster has."),
    "frameworks": (
        "allranks.cli.frameworks",
        "Show the frameworks of a Python and what they lack; build Horovod.",
    ),
    "sandbox": ("allranks.cli.sandbox", "A real Slurm cluster on this machine, to try things on."),
}
"""Verb → the module that holds it and its line of help. A verb's module is imported when it is used."""


class Verbs(click.Group):
    """Loads a verb only when it is asked for, so that the command starts fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(VERBS[cmd_name][0])
        command: click.Command = getattr(module, cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            ctx.fail(f"No such verb: {args[0]}.{_hint(args)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl([(name, text) for name, (_, text) in VERBS.items()])


def _hint(args: list[str]) -> str:
    from allranks.errors import did_you_mean

    if args[0].endswith((".py", ".sh")):
        return f" To start it: allranks run {' '.join(args)}"
    return did_you_mean(args[0], VERBS)


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "--version", message="allranks %(version)s")
def cli() -> None:
    """Take a training script from a laptop to many GPUs and many Slurm nodes.

    Options of allranks stand before the script; all that follows the script is the script's own:

    \b
        allranks run train.py --lr 0.1
        allranks submit --nodes 2 --gpus-per-node 4 --time 2h train.py --lr 0.1
    """


def main() -> None:
    """Entry point: our errors are sentences, never tracebacks."""
    try:
        code = cli.main(standalone_mode=False)
    except AllranksError as error:
        _complain(str(error))
        code = error.exit_code
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (KeyboardInterrupt, click.Abort):
        code = 130
    except BrokenPipeError:  # `allranks logs | head`
        sys.stderr.close()
        code = 141
    sys.exit(code if isinstance(code, int) else 0)


def _complain(message: str) -> None:
    first, _, rest = message.partition("\n")
    click.echo(f"{click.style('Error:', fg='red', bold=True)} {first}", err=True)
    if rest:
        click.echo(rest, err=True)
