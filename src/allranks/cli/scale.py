"""allranks scale: the same training on more and more processes, and what becomes of the speed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from allranks.cli.study_options import ScaleCommand, study_options

if TYPE_CHECKING:
    from allranks.scaling.analysis import Analysis
    from allranks.scaling.study import Study


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
    from allranks.scaling.holding import held
    from allranks.scaling.study import find_study

    if parameters["command"] and (parameters["show"] or parameters["resume"]):
        raise click.UsageError("A study knows its script: --show and --resume take no other words.")
    if parameters["show"]:
        from allranks.scaling.running import look

        study = find_study(parameters["show"], _root(parameters))
        raise click.exceptions.Exit(_show(study, look(study), parameters["as_json"]))
    again = parameters["resume"]
    study = find_study(again, _root(parameters)) if again else _new(parameters)
    with held(study.path):
        if again:
            study = _picked_up(study, parameters)
        raise click.exceptions.Exit(_run(study, parameters))


def _root(parameters: dict[str, Any]) -> Any:
    from pathlib import Path

    return Path(parameters["runs"]) if parameters.get("runs") else None


def _new(parameters: dict[str, Any]) -> Study:
    from allranks.cli.job_options import given_values
    from allranks.cli.planning import made_by
    from allranks.scaling.asking import Ask, make_study, prepare_point

    ask = Ask(
        kind=parameters["kind"],
        steps=parameters["steps"],
        repeat=parameters["repeat"],
        metric=parameters["metric"],
        samples=parameters["samples"],
        place=parameters["place"] or "",
        one_by_one=parameters["one_by_one"],
        wait=not parameters["no_wait"],
    )
    config, command = parameters.get("config"), made_by()
    study = make_study(given_values(parameters), ask, config=config, command=command, say=_note)
    if parameters["explain"]:
        from allranks.cli.planning import show_explanation

        show_explanation(prepare_point(study, study.points[-1]))
    return study


def _picked_up(study: Study, parameters: dict[str, Any]) -> Study:
    """Read again, now that nobody else can change it."""
    from allranks.scaling.asking import check_patience
    from allranks.scaling.running import pick_up

    study = type(study).open(study.path)
    pick_up(study)
    check_patience(study.where, not parameters["no_wait"])
    return study


def _show(study: Study, found: Analysis, as_json: bool) -> int:
    """The files are written too, where they can be: the study may be somebody else's."""
    from allranks.errors import AllranksError
    from allranks.scaling.results import write_results

    try:
        write_results(study, found)
    except AllranksError as error:
        _note(str(error))
    return _tell(study, found, as_json)


def _run(study: Study, parameters: dict[str, Any]) -> int:
    from allranks.cli.planning import job_python
    from allranks.scaling.running import go_on
    from allranks.scaling.views import TextView

    wait = not parameters["no_wait"]
    click.echo(f"Study {study.id}: {_plan_text(study)}", err=True)
    for warning in study.warnings():
        _note(warning)
    view = TextView()
    try:
        found = go_on(study, view, python=job_python(), wait=wait)
    except KeyboardInterrupt:
        _say_left(study)
        return 130
    view.close()
    if not wait and not parameters["as_json"]:
        _say_next(study)
        return 1 if any(point.state == "failed" for point in study.points) else 0
    return _tell(study, found, parameters["as_json"])


def _tell(study: Study, found: Analysis, as_json: bool) -> int:
    """The table, or JSON; the exit code is 1 when a point failed or nothing can be compared."""
    import json

    from allranks.scaling.results import PAGE, result
    from allranks.scaling.table import terminal_table

    if as_json:
        click.echo(json.dumps(result(study, found), indent=2))
    else:
        if sys.stderr.isatty():
            click.echo(err=True)
        click.echo(terminal_table(study, found))
        click.echo(f"\npage   {study.path / PAGE}\npaste  {study.path / 'scaling.md'}", err=True)
        _say_next(study, unfinished=any(point.state != "done" for point in study.points))
    bad = any(row.problems for row in found.rows) or found.kind == "mixed"
    return 1 if bad else 0


def _plan_text(study: Study) -> str:
    how = {
        "local": "one after the other here",
        "allocation": "one after the other in this allocation",
        "slurm": "one job after the other" if study.one_by_one else "a job each",
    }
    sizes = ", ".join(map(str, study.sizes))
    return f"{sizes} {study.axis.many}, {how[study.where]}"


def _say_next(study: Study, unfinished: bool = True) -> None:
    click.echo(f"again  allranks scale --show {study.id}", err=True)
    if unfinished:
        click.echo(f"go on  allranks scale --resume {study.id}", err=True)


def _say_left(study: Study) -> None:
    what = "Its jobs stay in the queue" if study.where == "slurm" else "It was broken off"
    click.echo(f"\n{what}; what is done is kept.", err=True)
    _say_next(study)
    if study.where == "slurm" and (open_ := [p.job_id for p in study.points if p.open]):
        click.echo(f"end    allranks cancel {' '.join(open_)}", err=True)


def _note(text: str) -> None:
    click.echo(f"{click.style('note:', fg='yellow')} {text}", err=True)
