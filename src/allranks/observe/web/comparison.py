"""The job of a run (plan, script, versions, environment), and the comparison of several runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from allranks.core.redaction import redact_environment, redact_text, redact_words
from allranks.observe.view.metric_columns import fit_start
from allranks.observe.view.run_source import RunSource
from allranks.observe.web.plot_data import LOSSES, THROUGHPUT, metric_names, nonfinite, series
from allranks.observe.web.request_cache import SourceCache
from allranks.runs.atomic_files import open_file, read_json
from allranks.runs.run_folder import Run
from allranks.runs.run_records import environment, plan_rows

_MOST = 512 << 10  # bytes of a text that are shown


def job_facts(source: RunSource) -> dict[str, Any]:
    """Return the job as JSON; texts of users are redacted again, since a page is shown to others."""
    run, last = source.run, source.last
    plan, code = read_json(run.path / "plan.json"), read_json(run.path / "code.json")
    return {
        "folder": str(run.path),
        "command": redact_words(run.command),
        "cwd": run.cwd,
        "launcher": plan.get("launcher"),
        "site": plan.get("site"),
        "allranks": plan.get("allranks"),
        "shape": plan.get("shape") if isinstance(plan.get("shape"), dict) else {},
        "values": plan_values(plan),
        "training": flat(read_json(source.folder / "training.json")),
        "script": redact_text(_text(run.path / "job.sh")),
        "code": {key: code[key] for key in ("commit", "branch", "dirty", "mode") if key in code},
        "versions": _versions(read_json(run.path / "versions.json")),
        "environment": redact_environment(environment(last.path)) if last else {},
    }


def plan_values(plan: dict[str, Any]) -> list[dict[str, str]]:
    """Return name, value and origin of each value of the plan."""
    return [
        {"name": name, "value": redact_text(value), "origin": origin}
        for name, value, origin in plan_rows(plan)
    ]


def flat(values: dict[str, Any], before: str = "") -> dict[str, str]:
    """Flatten nested keys to ``model.width``."""
    found: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            found |= flat(value, f"{before}{key}.")
        elif value is not None:
            found[before + key] = redact_text(str(value))
    return found


def _versions(versions: dict[str, Any]) -> dict[str, Any]:
    packages = versions.get("packages")
    return {
        "python": versions.get("python"),
        "platform": versions.get("platform"),
        "executable": versions.get("executable"),
        "packages": packages if isinstance(packages, dict) else {},
    }


def _text(path: Path) -> str:
    """Return the beginning of a file of the run; a symbolic link is not followed."""
    try:
        if path.is_symlink():
            return ""
        with open(open_file(path), "rb") as file:
            return file.read(_MOST).decode("utf-8", "replace")
    except OSError:
        return ""


MOST = 6
"""Runs in one comparison: more colours are hard to distinguish."""
_POINTS = 400
_OWN = {"name", "root_folder", "script", "args", "callbacks", "loggers"}
_LAST = (*LOSSES, *THROUGHPUT, "step_seconds", "lr")


def compare(
    runs: Sequence[tuple[str, Run]],
    following: SourceCache,
    *,
    x: str = "step",
    metric: str = "train_loss",
    weight: float = 0.0,
) -> dict[str, Any]:
    """Return as JSON the curves of each run, and tables of differences and of the last values."""
    found: dict[str, dict[str, Any]] = {}
    for key, run in runs:
        with following.source(run) as source:
            found[key] = _run_numbers(source, x, metric, weight)
            found[key]["settings"] = _settings(run, source.folder)
    names = [name for one in found.values() for name in one["names"]]
    return {
        "runs": [{"id": key, "name": run.name} for key, run in runs],
        "names": list(dict.fromkeys(names)),
        "metric": metric,
        "x": x,
        "curves": {key: one["curves"] for key, one in found.items()},
        "nonfinite": {key: one["nonfinite"] for key, one in found.items()},
        "differing": _differences({key: one["settings"] for key, one in found.items()}),
        "last": _rows(found),
    }


def _run_numbers(source: RunSource, x: str, metric: str, weight: float) -> dict[str, Any]:
    """Return the curves of one run, its last values, and which of them are not finite."""
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
    """Return the newest finite value."""
    found = (table.last(name) for table in (source.train, source.val))
    return next((value for value in found if value is not None), None)


def _settings(run: Run, folder: Path) -> dict[str, str]:
    """Return the plan's values and those of the training, including hyperparameters."""
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


def _differences(settings: Mapping[str, Mapping[str, str]]) -> list[dict[str, Any]]:
    """Return rows of the values that are not the same in all runs."""
    names = dict.fromkeys(name for values in settings.values() for name in values)
    rows = {name: {key: values.get(name) for key, values in settings.items()} for name in names}
    return [
        {"name": name, "values": row} for name, row in rows.items() if len(set(row.values())) > 1
    ]


def _rows(found: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    rows = {name: {key: one["last"].get(name) for key, one in found.items()} for name in _LAST}
    there = {name for one in found.values() for name in one["last"]}
    return [{"name": name, "values": row} for name, row in rows.items() if name in there]
