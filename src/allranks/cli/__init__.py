"""The ``allranks`` command: one thin module per subcommand (parse, call the library, print)."""

from __future__ import annotations

import importlib
import sys

import click

from allranks._version import __version__
from allranks.errors import AllranksError

COMMANDS = {
    "run": (
        "allranks.cli.run",
        "Run a training script on this machine or in the current allocation.",
    ),
    "submit": ("allranks.cli.submit", "Submit a training script to Slurm."),
    "script": ("allranks.cli.script", "Print the job script without submitting it."),
    "lint": ("allranks.cli.lint", "Find mistakes in a job script, and fix them."),
    "convert": ("allranks.cli.convert", "Convert a job script to an allranks.toml."),
    "ps": ("allranks.cli.ps", "List runs and their states."),
    "logs": ("allranks.cli.logs", "Show the logs of a run, merged over ranks."),
    "top": ("allranks.cli.top", "Watch a run: progress, loss, GPUs, slowest rank."),
    "web": ("allranks.cli.web", "Watch runs in a browser: plots, logs, comparisons."),
    "report": (
        "allranks.cli.report",
        "Write a report: what was requested, what was used, what to change.",
    ),
    "export": ("allranks.cli.export", "Export metrics to Prometheus, Grafana, TensorBoard or CSV."),
    "scale": ("allranks.cli.scale", "Measure how a training scales over GPUs or nodes."),
    "resume": ("allranks.cli.resume", "Resume a run that ended before its training finished."),
    "checkpoints": (
        "allranks.cli.checkpoints",
        "List and verify checkpoints, export the weights.",
    ),
    "cancel": ("allranks.cli.cancel", "Cancel a run."),
    "check": ("allranks.cli.check", "Check that signals reach every rank on this cluster."),
    "sites": ("allranks.cli.sites", "List, show and detect sites (cluster descriptions)."),
    "frameworks": (
        "allranks.cli.frameworks",
        "Show the installed frameworks and what is missing.",
    ),
    "sandbox": ("allranks.cli.sandbox", "Start a real Slurm cluster on this machine for testing."),
}
"""Command → its module, imported on first use, and its line of help."""


class Commands(click.Group):
    """Load a subcommand only when it is used, so that the command starts fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[cmd_name][0])
        command: click.Command = getattr(module, cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"No such command: {args[0]}.{_hint(args)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


def _hint(args: list[str]) -> str:
    from allranks.errors import did_you_mean

    if args[0].endswith((".py", ".sh")):
        return f" To run it: allranks run {' '.join(args)}"
    return did_you_mean(args[0], COMMANDS)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "--version", message="allranks %(version)s")
def cli() -> None:
    """Take a training script from a laptop to many GPUs and many Slurm nodes.

    Options of allranks go before the script; everything after the script is passed to it:

    \b
        allranks run train.py --lr 0.1
        allranks submit --nodes 2 --gpus-per-node 4 --time 2h train.py --lr 0.1
    """


def main() -> None:
    """Run the command; expected errors print a message, not a traceback."""
    try:
        code = cli.main(standalone_mode=False)
    except AllranksError as error:
        _print_error(str(error))
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


def _print_error(message: str) -> None:
    first, _, rest = message.partition("\n")
    click.echo(f"{click.style('Error:', fg='red', bold=True)} {first}", err=True)
    if rest:
        click.echo(rest, err=True)
