"""The loss curve as a picture: ``curve.svg`` in the run folder, drawn from ``metrics.jsonl``."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

from allranks.core.plots import LineSeries, line_plot
from allranks.runs.fit_boundaries import Fits

Point = tuple[float, float]
MOST_POINTS = 600


def draw_curve(folder: Path) -> Path | None:
    """Write the picture; None when there is nothing to draw."""
    losses = read_losses(folder / "metrics.jsonl")
    if not any(len(points) > 1 for points in losses.values()):
        return None
    path = folder / "curve.svg"
    lines = [_line(name, points) for name, points in losses.items() if points]
    path.write_text(line_plot(lines, x="step", title="Loss", height=400), encoding="utf-8")
    return path


def read_losses(path: Path) -> dict[str, list[Point]]:
    """Training and validation loss by step; what is not a number is left out.

    Between two fits, each of which begins with the first step, stands a point without a value.
    """
    lines: dict[str, list[Point]] = {"train_loss": [], "val_loss": []}
    fits = {name: Fits() for name in lines}
    if not path.exists():
        return lines
    for text in path.read_text().splitlines():
        try:
            row = json.loads(text)
        except ValueError:  # the last line of a run that was killed
            continue
        name = {"train": "train_loss", "val": "val_loss"}.get(row.get("kind"), "")
        if name and row.get(name) is not None:
            if fits[name].begins(row["step"], row.get("fit")):
                lines[name].append((row["step"], math.nan))
            lines[name].append((row["step"], row[name]))
    return lines


def _line(name: str, points: Sequence[Point]) -> LineSeries:
    kept = _thinned(points)
    return LineSeries(name.replace("_", " "), [x for x, _ in kept], [y for _, y in kept])


def _thinned(points: Sequence[Point]) -> list[Point]:
    """Evenly, with the gaps between fits and the last point."""
    stride, last = max(1, math.ceil(len(points) / MOST_POINTS)), len(points) - 1
    return [
        point
        for place, point in enumerate(points)
        if place % stride == 0 or place == last or math.isnan(point[1])
    ]
