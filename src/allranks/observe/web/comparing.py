"""Some runs side by side: their curves, and the values in which they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from allranks.observe.view.fit_steps import fit_start
from allranks.observe.view.run_source import RunSource
from allranks.observe.web.job_facts import flat, plan_values
from allranks.observe.web.looks import LOSSES, THROUGHPUT, metric_names, nonfinite, series
from allranks.observe.web.source_cache import Following
from allranks.runs.atomic_files import read_json
from allranks.runs.run import Run

MOST = 6
"""Runs in one comparison: more colours than that nobody tells apart."""
_POINTS = 400
_OWN = {"name", "root_folder", "script", "args", "callbacks", "loggers"}
_LAST = (*LOSSES, *THROUGHPUT, "step_seconds", "lr")


def compare(
    runs: Sequence[tuple[str, Run]],
    following: Following,
    *,
    x: str = "step",
    metric: str = "train_loss",
    weight: float = 0.0,
) -> dict[str, Any]:
    """As JSON: the curves of each run, and tables of what differs and of the last values."""
    found: dict[str, dict[str, Any]] = {}
    for key, run in runs:
        with following.source(run) as source:
            found[key] = _numbers(source, x, metric, weight)
            found[key]["settings"] = _settings(run, source.folder)
    names = [name for one in found.values() for name in one["names"]]
    return {
        "runs": [{"id": key, "name": run.name} for key, run in runs],
        "names": list(dict.fromkeys(names)),
        "metric": metric,
        "x": x,
        "curves": {key: one["curves"] for key, one in found.items()},
        "nonfinite": {key: one["nonfinite"] for key, one in found.items()},
        "differing": _differing({key: one["settings"] for key, one in found.items()}),
        "last": _rows(found),
    }


def _numbers(source: RunSource, x: str, metric: str, weight: float) -> dict[str, Any]:
    """Of one run: its curves, its last values, and what of them is no number."""
    since, known = fit_start(source), metric_names(source)
    drawn = dict.fromkeys((metric, "samples_per_second", "tokens_per_second"))
    smoothing = {metric: weight}
    return {
        "names": known,
        "curves": {
            name: series(source, name, since, x=x, weight=smoothing.get(name, 0.0), most=_POINTS)
            for name in drawn
            if name in known
        },
        "nonfinite": nonfinite(source, known, since, x),
        "last": {name: _last(source, name) for name in _LAST if name in known},
    }


def _last(source: RunSource, name: str) -> float | None:
    """The newest value that is a number."""
    found = (table.last(name) for table in (source.train, source.val))
    return next((value for value in found if value is not None), None)


def _settings(run: Run, folder: Path) -> dict[str, str]:
    """The plan's values and, from the folder of the training, its own, hyperparameters included."""
    plan = read_json(run.path / "plan.json")
    shape = plan.get("shape")
    values = {entry["name"]: entry["value"] for entry in plan_values(plan)}
    values |= flat(shape) if isinstance(shape, dict) else {}
    values |= {"launcher": str(plan["launcher"])} if plan.get("launcher") else {}
    values |= {"arguments": values["args"]} if values.get("args") else {}
    training = {
        name.removeprefix("hyperparams."): value
        for name, value in flat(read_json(folder / "training.json")).items()
    }
    return {name: value for name, value in (values | training).items() if name not in _OWN}


def _differing(settings: Mapping[str, Mapping[str, str]]) -> list[dict[str, Any]]:
    """Rows of the values that are not the same in all."""
    names = dict.fromkeys(name for values in settings.values() for name in values)
    rows = {name: {key: values.get(name) for key, values in settings.items()} for name in names}
    return [
        {"name": name, "values": row} for name, row in rows.items() if len(set(row.values())) > 1
    ]


def _rows(found: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    rows = {name: {key: one["last"].get(name) for key, one in found.items()} for name in _LAST}
    there = {name for one in found.values() for name in one["last"]}
    return [{"name": name, "values": row} for name, row in rows.items() if name in there]
