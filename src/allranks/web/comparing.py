"""Some runs side by side: their curves, and the values in which they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from allranks.runs.files import read_json
from allranks.runs.folder import Run
from allranks.web.following import Following
from allranks.web.job_facts import flat, plan_values
from allranks.web.looks import LOSSES, THROUGHPUT, fit_start, metric_names, series

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
    curves: dict[str, Any] = {}
    last: dict[str, dict[str, Any]] = {}
    names: dict[str, None] = {}
    for key, run in runs:
        with following.source(run) as source:
            known = metric_names(source)
            names |= dict.fromkeys(known)
            asked = dict.fromkeys((metric, "samples_per_second", "tokens_per_second"))
            since = fit_start(source)
            curves[key] = {
                name: series(
                    source,
                    name,
                    since,
                    x=x,
                    weight=weight if name == metric else 0.0,
                    most=_POINTS,
                )
                for name in asked
                if name in known
            }
            last[key] = {name: _last(source.train, source.val, name) for name in _LAST}
    return {
        "runs": [{"id": key, "name": run.name} for key, run in runs],
        "names": list(names),
        "metric": metric,
        "x": x,
        "curves": curves,
        "differing": _differing({key: _settings(run) for key, run in runs}),
        "last": _rows(last),
    }


def _last(train: Any, val: Any, name: str) -> float | None:
    for table in (train, val):
        if name in table.names:
            return next((each for each in reversed(table[name]) if each is not None), None)
    return None


def _settings(run: Run) -> dict[str, str]:
    """The plan's values and the training's, hyperparameters included."""
    plan = read_json(run.path / "plan.json")
    shape = plan.get("shape")
    values = {entry["name"]: entry["value"] for entry in plan_values(plan)}
    values |= flat(shape) if isinstance(shape, dict) else {}
    values |= {"launcher": str(plan["launcher"])} if plan.get("launcher") else {}
    values |= {"arguments": values["args"]} if values.get("args") else {}
    training = {
        name.removeprefix("hyperparams."): value
        for name, value in flat(read_json(run.path / "training.json")).items()
    }
    return {name: value for name, value in (values | training).items() if name not in _OWN}


def _differing(settings: Mapping[str, Mapping[str, str]]) -> list[dict[str, Any]]:
    """Rows of the values that are not the same in all."""
    names = dict.fromkeys(name for values in settings.values() for name in values)
    rows = {name: {key: values.get(name) for key, values in settings.items()} for name in names}
    return [
        {"name": name, "values": row} for name, row in rows.items() if len(set(row.values())) > 1
    ]


def _rows(last: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    rows = {name: {key: values[name] for key, values in last.items()} for name in _LAST}
    return [
        {"name": name, "values": row}
        for name, row in rows.items()
        if any(value is not None for value in row.values())
    ]
