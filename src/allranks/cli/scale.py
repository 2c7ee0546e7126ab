"""allranks scale: run the same training on several sizes and compare the speed."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from allranks.cli.job_options import GroupedOption, JobCommand, job_options
from allranks.job.fields import GROUPS

if TYPE_CHECKING:
    from allranks.observe.scaling.scaling_study import Study
    from allranks.observe.scaling.size_results import Analysis


SIZES = ("nodes", "gpus_per_node", "nprocs")
"""Fields of the job that take a list in a study."""


class _Option(GroupedOption):
    group = "Study"


class ScaleCommand(JobCommand):
    """A job command whose help shows the options of the study first."""

    groups = (_Option.group, *GROUPS)


def _option(*words: str, help: str, **how: Any) -> tuple[tuple[str, ...], dict[str, Any]]:  # noqa: A002
    return words, {"help": help, "default": None, **how}


def _number(word: str, least: int, help: str, default: int | None = None) -> Any:  # noqa: A002
    return _option(word, help=help, type=click.IntRange(least), metavar="N", default=default)


_OPTIONS = [
    _option("--nodes", "-N", "nodes", metavar="SIZES", help="Numbers of nodes: 1,2,4 or 1-4."),
    _option(
        "--gpus-per-node", "gpus_per_node", metavar="SIZES", help="Numbers of GPUs per node: 1,2,4."
    ),
    _option(
        "--procs",
        "--nprocs",
        "-n",
        "nprocs",
        metavar="SIZES",
        help="Total numbers of ranks: 1,2,4.",
    ),
    _option(
        "--strong", "kind", flag_value="strong", help="Strong scaling: keep the global batch size."
    ),
    _option(
        "--weak", "kind", flag_value="weak", help="Weak scaling: keep the batch size per rank."
    ),
    _number("--steps", 5, "Training steps at each size, at least 5 [default: 100].", 100),
    _number("--repeat", 1, "Measurements per size [default: 1].", 1),
    _option(
        "--metric",
        metavar="REGEX",
        help="Read the speed from rank 0's log: 'samples/s: ([\\d.]+)'.",
    ),
    _number("--samples", 1, "Compute the cost of N samples [default: a million]."),
    _option(
        "--here", "place", flag_value="here", help="Run on this machine, one size after the other."
    ),
    _option("--submit", "place", flag_value="submit", help="Submit a job for each size."),
    _option(
        "--one-by-one", is_flag=True, default=False, help="Start the jobs one after the other."
    ),
    _option("--no-wait", is_flag=True, default=False, help="Submit the jobs and return at once."),
    _option("--resume", metavar="STUDY", help="Run the sizes that are missing or failed."),
    _option("--show", metavar="STUDY", help="Print the table of a study."),
    _option("--json", "as_json", is_flag=True, default=False, help="Print the result as JSON."),
]


def study_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of the study, and those of the job that are the same at every size."""
    for words, how in reversed(_OPTIONS):
        function = click.option(*words, cls=_Option, **how)(function)
    return job_options(function, without=SIZES)


@click.command(
    cls=ScaleCommand,
    common=(
        "nodes", "gpus_per_node", "nprocs", "kind", "steps", "repeat", "metric", "place",
        "resume", "show", "as_json", "config", "help",
    ),
)  # fmt: skip
@study_options
def scale(**parameters: Any) -> None:
    """Measure how a training scales: run it on several sizes and compare.

    A Trainer script needs no change. In the arguments of another, {ranks}, {nodes}, {share:256} (256
    divided by the ranks) and {times:32} (32 times the ranks) depend on the size.

    \b
        allranks scale --procs 1,2,4 train.py
        allranks scale --nodes 1,2,4,8 --gpus-per-node 4 --time 15m --strong train.py
        allranks scale --procs 1,2 --metric 'samples/s: ([\\d.]+)' train.py --batch {share:256}
        allranks scale --show last
    """
    from allranks.observe.scaling.scaling_study import find_study, lock_study

    if parameters["command"] and (parameters["show"] or parameters["resume"]):
        raise click.UsageError("--show and --resume take no script: the study has one.")
    usual = (
        _default_root()
    )  # before the working directory changes: a resumed study runs where it was started
    root = Path(parameters["runs"]) if parameters["runs"] else None
    if parameters["show"]:
        from allranks.observe.scaling.study_runner import analyse_now

        study = find_study(parameters["show"], root, parameters["config"])
        code = _show(study, analyse_now(study), usual, parameters["as_json"])
        raise click.exceptions.Exit(code)
    again = parameters["resume"]
    study = find_study(again, root, parameters["config"]) if again else _new(parameters)
    with lock_study(study.path):
        if again:
            study = _reopen(study, parameters)
        raise click.exceptions.Exit(_run(study, usual, parameters))


def _default_root() -> Path | None:
    """Return the folder in which a study is found by name; None if the job file is invalid."""
    from allranks.errors import AllranksError
    from allranks.observe.scaling.scaling_study import default_root

    try:
        return default_root()
    except AllranksError:
        return None


_ASKED = ("kind", "steps", "repeat", "metric", "samples", "place", "one_by_one", "config")


def _new(parameters: dict[str, Any]) -> Study:
    from allranks.cli.job_options import given_values
    from allranks.cli.planning import made_by, show_explanation
    from allranks.observe.scaling.point_plans import prepare_point
    from allranks.observe.scaling.study_request import make_study

    study = make_study(
        given_values(parameters),
        wait=not parameters["no_wait"],
        command=made_by(),
        say=_note,
        **{name: parameters[name] for name in _ASKED},
    )
    if parameters["explain"]:
        show_explanation(prepare_point(study, study.points[-1]))
    return study


def _reopen(study: Study, parameters: dict[str, Any]) -> Study:
    """Read the study again, now that it is locked."""
    from allranks.observe.scaling.study_request import check_wait_option
    from allranks.observe.scaling.study_runner import prepare_resume

    study = type(study).open(study.path)
    prepare_resume(study)
    check_wait_option(study.where, not parameters["no_wait"])
    return study


def _show(study: Study, found: Analysis, usual: Path | None, as_json: bool) -> int:
    """Print a study and write its result files if its folder is writable."""
    from allranks.errors import AllranksError
    from allranks.observe.scaling.study_results import write_results

    try:
        write_results(study, found)
    except AllranksError as error:
        _note(str(error))
    return _print_result(study, found, usual, as_json)


def _run(study: Study, usual: Path | None, parameters: dict[str, Any]) -> int:
    from allranks.cli.planning import job_python
    from allranks.observe.scaling.conclusions import machine_notes
    from allranks.observe.scaling.study_display import TextDisplay
    from allranks.observe.scaling.study_runner import run_study

    wait = not parameters["no_wait"]
    click.echo(f"Study {study.id}: {_plan_text(study)}", err=True)
    for warning in machine_notes(study):
        _note(warning)
    view = TextDisplay()
    try:
        found = run_study(study, view, python=job_python(), wait=wait)
    except KeyboardInterrupt:
        _print_interrupted(study, usual)
        return 130
    view.close()
    if not wait and not parameters["as_json"]:
        _print_next(study, usual)
        return 1 if any(point.state == "failed" for point in study.points) else 0
    return _print_result(study, found, usual, parameters["as_json"])


def _print_result(study: Study, found: Analysis, usual: Path | None, as_json: bool) -> int:
    """Print the table or JSON; return 1 if a size failed or the sizes cannot be compared."""
    import json

    from allranks.observe.scaling.study_results import PAGE, study_record
    from allranks.observe.scaling.study_table import terminal_table

    failed = any(row.problems for row in found.rows)
    if as_json:
        click.echo(json.dumps(study_record(study, found), indent=2))
    else:
        if sys.stderr.isatty():
            click.echo(err=True)
        click.echo(terminal_table(study, found, _width()))
        click.echo(f"\npage   {study.path / PAGE}\npaste  {study.path / 'scaling.md'}", err=True)
        _print_next(study, usual, failed or any(point.state != "done" for point in study.points))
    return 1 if failed or found.kind == "mixed" else 0


def _plan_text(study: Study) -> str:
    how = {
        "local": "one after the other here",
        "allocation": "one after the other in this allocation",
        "slurm": "one job after the other" if study.one_by_one else "a job each",
    }
    sizes = ", ".join(map(str, study.sizes))
    return f"{sizes} {study.axis.many}, {how[study.where]}"


def _width() -> int:
    """Return the width of the table: the terminal's, or 80 columns in a file."""
    from allranks.observe.scaling.study_table import WIDEST, WIDTH

    return min(shutil.get_terminal_size().columns, WIDEST) if sys.stdout.isatty() else WIDTH


def _print_next(study: Study, usual: Path | None, unfinished: bool = True) -> None:
    """Print the next commands; a study outside the default folder is named by its path."""
    from allranks.core.shell import quote

    name = study.id if study.path.parent.parent == usual else quote(str(study.path))
    click.echo(f"show   allranks scale --show {name}", err=True)
    if unfinished:
        click.echo(f"resume allranks scale --resume {name}", err=True)


def _print_interrupted(study: Study, usual: Path | None) -> None:
    what = "Its jobs stay in the queue" if study.is_queued else "Interrupted"
    click.echo(f"\n{what}; finished sizes are kept.", err=True)
    _print_next(study, usual)
    if study.is_queued and (open_ := [p.job_id for p in study.points if p.open]):
        click.echo(f"cancel allranks cancel {' '.join(open_)}", err=True)


def _note(text: str) -> None:
    click.echo(f"{click.style('note:', fg='yellow')} {text}", err=True)
