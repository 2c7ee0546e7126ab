"""The options of a scaling study, beside those of the job that it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from allranks.cli.job_options import GroupedOption, JobCommand, job_options
from allranks.job.fields import GROUPS

SIZES = ("nodes", "gpus_per_node", "nprocs")
"""Fields of the job that are lists here."""


class _Option(GroupedOption):
    group = "Study"


class ScaleCommand(JobCommand):
    """The study's options come before those of a job."""

    groups = (_Option.group, *GROUPS)


def _option(*words: str, help: str, **how: Any) -> tuple[tuple[str, ...], dict[str, Any]]:  # noqa: A002
    return words, {"help": help, "default": None, **how}


def _number(word: str, least: int, help: str, default: int | None = None) -> Any:  # noqa: A002
    return _option(word, help=help, type=click.IntRange(least), metavar="N", default=default)


_OPTIONS = [
    _option("--nodes", "-N", "nodes", metavar="SIZES", help="Machines: 1,2,4 or 1-4."),
    _option(
        "--gpus-per-node", "gpus_per_node", metavar="SIZES", help="GPUs on each machine: 1,2,4."
    ),
    _option("--procs", "--nprocs", "-n", "nprocs", metavar="SIZES", help="Ranks in all: 1,2,4."),
    _option("--strong", "kind", flag_value="strong", help="Keep the global batch."),
    _option("--weak", "kind", flag_value="weak", help="Keep the batch of each rank."),
    _number("--steps", 5, "Steps of a Trainer at each size, 20 or more [100].", 100),
    _number("--repeat", 1, "Measure each size so often [1].", 1),
    _option("--metric", metavar="REGEX", help="The speed in rank 0's log: 'samples/s: ([\\d.]+)'."),
    _number("--samples", 1, "Reckon the cost of so many samples [a million]."),
    _option("--here", "place", flag_value="here", help="Run here, one size after the other."),
    _option("--submit", "place", flag_value="submit", help="Submit a job for each size."),
    _option("--one-by-one", is_flag=True, default=False, help="Jobs start one after the other."),
    _option("--no-wait", is_flag=True, default=False, help="Submit the jobs and return."),
    _option("--resume", metavar="STUDY", help="Go on with what is missing or failed."),
    _option("--show", metavar="STUDY", help="Print a study's table again."),
    _option("--json", "as_json", is_flag=True, default=False, help="Print the result as JSON."),
]


def study_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the study's own options, and those of the job that are the same at every size."""
    for words, how in reversed(_OPTIONS):
        function = click.option(*words, cls=_Option, **how)(function)
    return job_options(function, without=SIZES)
