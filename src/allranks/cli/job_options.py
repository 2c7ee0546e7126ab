"""The options that describe a job, made from the table in ``allranks.job.fields``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import click

from allranks.job.fields import GROUPS, options

OTHER = "Other"


class JobCommand(click.Command):
    """A command whose help shows the options in groups, and which leaves the script's words alone."""

    groups: Sequence[str] = GROUPS
    """The titles, in their order; "Other" comes last."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        settings = kwargs.setdefault("context_settings", {})
        # Parsing ends at the script: what follows belongs to it, as with torchrun.
        settings["allow_interspersed_args"] = False
        super().__init__(*args, **kwargs)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
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
    """An option that knows its group."""

    group = OTHER


def job_options(function: Callable[..., Any], without: Collection[str] = ()) -> Callable[..., Any]:
    """Add the job's options, ``--config`` and ``--explain``, and the words of the command.

    ``without`` are fields that the verb has options of its own for.
    """
    function = click.argument(
        "command", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]…"
    )(function)
    function = click.option(
        "--explain", is_flag=True, help="Show each value and where it came from."
    )(function)
    function = click.option(
        "--config", metavar="FILE", help="Job file [default: allranks.toml here or above]."
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
    """What the user typed: the fields of the job that hold something."""
    values = {name: value for name, value in parameters.items() if name in options()}
    values = {name: value for name, value in values.items() if value not in (None, ())}
    command = parameters.get("command") or ()
    if command:
        values["script"], values["args"] = command[0], tuple(command[1:])
    return values
