"""Made-up studies with numbers that are known, for tests of what is made of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from allranks.observe.scaling.scaling_study import DONE, FAILED, Point, Study
from allranks.runs.run_folder import Run

WARM = 3
"""Windows at the beginning that are slower than the others, as with compilation."""


def make_study(root: Path, name: str = "train", axis: str = "nodes", **about: Any) -> Study:
    """A study without points."""
    given = {"where": "slurm", "command": f"allranks scale --nodes 1,2,4 {name}.py"} | about
    return Study(name, axis, **given).create_folder(root)


def add_point(
    study: Study,
    size: int,
    *,
    rate: float,
    batch: float = 64,
    ranks: int | None = None,
    gpus: int = 0,
    repeat: int = 1,
    phases: Mapping[str, float] | None = None,
    waits: float = 0.0,
    windows: int = 12,
) -> Point:
    """A finished point: ``rate`` samples a second after a slow beginning.

    ``phases`` are shares of a step; ``waits`` is the share by which one rank is slower.
    """
    ranks = ranks or size
    root = study.path.parent.parent
    run = Run.create(
        root, f"{study.name}-{size}-{repeat}", scheduler="slurm", cwd=root, command=["allranks"]
    )
    run.new_attempt(hosts=[f"node{n + 1}" for n in range(size)]).finish(0, outcome="finished")
    lines = [_line(n, rate, batch, phases or {}) for n in range(windows)]
    write_lines(run.path / "metrics.jsonl", lines)
    if waits:
        step = batch / rate
        own = [step * 0.5] * (ranks - 1) + [step * (0.5 + waits)]
        rows = [_window(line, own) for line in lines]
        write_lines(run.path / "attempts/1/steps.jsonl", rows)
    point = Point(size, repeat, DONE, run=str(run.path), nodes=size, ranks=ranks, gpus=gpus)
    point.cpus = ranks
    return _added(study, point)


def add_failure(study: Study, size: int, why: str) -> Point:
    """A point that failed."""
    return _added(study, Point(size, 1, FAILED, why, ranks=size, nodes=size))


def write_lines(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """One JSON object a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _added(study: Study, point: Point) -> Point:
    study.points.append(point)
    study.save()
    return point


def _line(number: int, rate: float, batch: float, phases: Mapping[str, float]) -> dict[str, Any]:
    slow = 10.0 if number < WARM else 1.0
    seconds = batch / rate * slow
    return {
        "time": 1000.0 + number,
        "step": 10 * (number + 1),
        "epoch": 1,
        "kind": "train",
        "train_loss": 1.0,
        "samples_per_second": rate / slow,
        "step_seconds": seconds,
    } | {f"{name}_seconds": share * seconds for name, share in phases.items()}


def _window(line: Mapping[str, Any], own: Sequence[float]) -> dict[str, Any]:
    return {
        "time": line["time"],
        "step": line["step"],
        "epoch": 1,
        "step_seconds": [line["step_seconds"]] * len(own),
        "data_seconds": [0.0] * len(own),
        "compute_seconds": list(own),
        "communication_seconds": [line["step_seconds"] - each for each in own],
    }
