"""The options that describe a job, generated from the table in ``allranks.job.fields``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import click

from allranks.job.fields import GROUPS, options

OTHER = "Other"
_FULL_HELP = "allranks.full_help"


class JobCommand(click.Command):
    """A command with the options of a job: ``--help`` shows the common ones, ``--help-all`` all.

    Parsing stops at the script: everything after it belongs to the script, as with torchrun.
    """

    groups: Sequence[str] = GROUPS
    """The titles of ``--help-all``, in their order; "Other" comes last."""

    def __init__(self, *args: Any, common: Collection[str] = (), **kwargs: Any) -> None:
        """Take the names of the common parameters; without them ``--help`` shows all."""
        self.common = common
        settings = kwargs.setdefault("context_settings", {})
        settings["allow_interspersed_args"] = False
        super().__init__(*args, **kwargs)
        if common:
            self.params.append(
                click.Option(
                    ["--help-all"],
                    is_flag=True,
                    is_eager=True,
                    expose_value=False,
                    callback=self._print_full_help,
                    help="Show all options.",
                )
            )

    def _print_full_help(self, ctx: click.Context, _: click.Parameter, asked: bool) -> None:
        if asked:
            ctx.meta[_FULL_HELP] = True
            click.echo(ctx.get_help(), color=ctx.color)
            ctx.exit()

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.common and _FULL_HELP not in ctx.meta:
            self._format_common(ctx, formatter)
        else:
            self._format_groups(ctx, formatter)

    def _format_common(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        shown = [each for each in self.get_params(ctx) if each.name in self.common]
        shown.sort(key=lambda each: list(self.common).index(each.name or ""))
        records = [each.get_help_record(ctx) for each in shown]
        total = sum(isinstance(each, click.Option) for each in self.get_params(ctx))
        with formatter.section("Common options"):
            formatter.write_dl([record for record in records if record])
        formatter.write_paragraph()
        formatter.write_text(f"All {total} options: {ctx.command_path} --help-all")

    def _format_groups(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {OTHER: []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                groups.setdefault(getattr(parameter, "group", OTHER), []).append(record)
        for title in (*self.groups, OTHER):
            if groups.get(title):
                with formatter.section(title):
                    formatter.write_dl(groups[title])


class GroupedOption(click.Option):
    """An option with the title of its group in the help."""

    group = OTHER


def job_options(function: Callable[..., Any], without: Collection[str] = ()) -> Callable[..., Any]:
    """Add the options of a job, ``--config``, ``--explain`` and the script with its arguments.

    ``without`` names fields for which the command defines its own options.
    """
    function = click.argument(
        "command", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]…"
    )(function)
    function = click.option(
        "--explain", is_flag=True, help="Print each value and where it comes from."
    )(function)
    function = click.option(
        "--config",
        metavar="FILE",
        help="Job file [default: allranks.toml in this folder or above].",
    )(function)
    for name, spec in reversed(options().items()):
        if name in without:
            continue
        spelling = spec.spelling or name.replace("_", "-")
        words = [name, *([f"-{spec.short}"] if spec.short else [])]
        how: dict[str, Any] = {"help": spec.help, "cls": GroupedOption, "default": None}
        if spec.flag:
            words.append(f"--{spelling}" if name == "module" else f"--{spelling}/--no-{spelling}")
            how["is_flag"] = True
        else:
            words.append(f"--{spelling}")
            how |= {"metavar": spec.metavar, "multiple": spec.many}
        function = click.option(*words, **how)(function)
        function.__click_params__[-1].group = spec.group  # type: ignore[attr-defined]
    return function


def given_values(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of the job that were given on the command line."""
    values = {name: value for name, value in parameters.items() if name in options()}
    values = {name: value for name, value in values.items() if value not in (None, ())}
    command = parameters.get("command") or ()
    if command:
        values["script"], values["args"] = command[0], tuple(command[1:])
    return values
