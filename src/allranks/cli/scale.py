"""allranks scale: the same training on more and more processes, and what becomes of the speed."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from allranks.cli.study_options import ScaleCommand, study_options

if TYPE_CHECKING:
    from allranks.observe.scaling.analysis import Analysis
    from allranks.observe.scaling.study_file import Study


@click.command(cls=ScaleCommand)
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
    from allranks.observe.scaling.holding import held
    from allranks.observe.scaling.study_file import find_study

    if parameters["command"] and (parameters["show"] or parameters["resume"]):
        raise click.UsageError("A study knows its script: --show and --resume take no other words.")
    usual = _usual()  # now: a study that goes on does so where it was started
    root = Path(parameters["runs"]) if parameters["runs"] else None
    if parameters["show"]:
        from allranks.observe.scaling.running import look

        study = find_study(parameters["show"], root, parameters["config"])
        code = _show(study, look(study), usual, parameters["as_json"])
        raise click.exceptions.Exit(code)
    again = parameters["resume"]
    study = find_study(again, root, parameters["config"]) if again else _new(parameters)
    with held(study.path):
        if again:
            study = _picked_up(study, parameters)
        raise click.exceptions.Exit(_run(study, usual, parameters))


def _usual() -> Path | None:
    """Where a study is found by its name; None where a fault in the job file hides that."""
    from allranks.errors import AllranksError
    from allranks.observe.scaling.study_file import usual_root

    try:
        return usual_root()
    except AllranksError:
        return None


_ASKED = ("kind", "steps", "repeat", "metric", "samples", "place", "one_by_one", "config")


def _new(parameters: dict[str, Any]) -> Study:
    from allranks.cli.job_options import given_values
    from allranks.cli.planning import made_by, show_explanation
    from allranks.observe.scaling.asking import make_study
    from allranks.observe.scaling.points import prepare_point

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


def _picked_up(study: Study, parameters: dict[str, Any]) -> Study:
    """Read again, now that nobody else can change it."""
    from allranks.observe.scaling.asking import check_patience
    from allranks.observe.scaling.running import pick_up

    study = type(study).open(study.path)
    pick_up(study)
    check_patience(study.where, not parameters["no_wait"])
    return study


def _show(study: Study, found: Analysis, usual: Path | None, as_json: bool) -> int:
    """The files are written too, where they can be: the study may be somebody else's."""
    from allranks.errors import AllranksError
    from allranks.observe.scaling.results import write_results

    try:
        write_results(study, found)
    except AllranksError as error:
        _note(str(error))
    return _tell(study, found, usual, as_json)


def _run(study: Study, usual: Path | None, parameters: dict[str, Any]) -> int:
    from allranks.cli.planning import job_python
    from allranks.observe.scaling.doubts import warnings
    from allranks.observe.scaling.running import go_on
    from allranks.observe.scaling.views import TextView

    wait = not parameters["no_wait"]
    click.echo(f"Study {study.id}: {_plan_text(study)}", err=True)
    for warning in warnings(study):
        _note(warning)
    view = TextView()
    try:
        found = go_on(study, view, python=job_python(), wait=wait)
    except KeyboardInterrupt:
        _say_left(study, usual)
        return 130
    view.close()
    if not wait and not parameters["as_json"]:
        _say_next(study, usual)
        return 1 if any(point.state == "failed" for point in study.points) else 0
    return _tell(study, found, usual, parameters["as_json"])


def _tell(study: Study, found: Analysis, usual: Path | None, as_json: bool) -> int:
    """The table, or JSON; the exit code is 1 when a point failed or nothing can be compared."""
    import json

    from allranks.observe.scaling.results import PAGE, result
    from allranks.observe.scaling.study_table import terminal_table

    failed = any(row.problems for row in found.rows)
    if as_json:
        click.echo(json.dumps(result(study, found), indent=2))
    else:
        if sys.stderr.isatty():
            click.echo(err=True)
        click.echo(terminal_table(study, found, _width()))
        click.echo(f"\npage   {study.path / PAGE}\npaste  {study.path / 'scaling.md'}", err=True)
        _say_next(study, usual, failed or any(point.state != "done" for point in study.points))
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
    """Of the table: as a file it has 80 columns."""
    from allranks.observe.scaling.study_table import WIDEST, WIDTH

    return min(shutil.get_terminal_size().columns, WIDEST) if sys.stdout.isatty() else WIDTH


def _say_next(study: Study, usual: Path | None, unfinished: bool = True) -> None:
    """A study elsewhere than where one looks without --runs is named by its folder."""
    from allranks.core.shell import quote

    name = study.id if study.path.parent.parent == usual else quote(str(study.path))
    click.echo(f"again  allranks scale --show {name}", err=True)
    if unfinished:
        click.echo(f"go on  allranks scale --resume {name}", err=True)


def _say_left(study: Study, usual: Path | None) -> None:
    what = "Its jobs stay in the queue" if study.where == "slurm" else "It was broken off"
    click.echo(f"\n{what}; what is done is kept.", err=True)
    _say_next(study, usual)
    if study.where == "slurm" and (open_ := [p.job_id for p in study.points if p.open]):
        click.echo(f"end    allranks cancel {' '.join(open_)}", err=True)


def _note(text: str) -> None:
    click.echo(f"{click.style('note:', fg='yellow')} {text}", err=True)
