"""The loss curve as a picture: ``curve.svg`` in the run folder, drawn from ``metrics.jsonl``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from allranks.core.plots import LineSeries, line_plot
from allranks.runs.metrics_file import FitTracker, read_metrics

Point = tuple[float, float]
MOST_POINTS = 600


def draw_curve(folder: Path) -> Path | None:
    """Write the picture; None when there is nothing to draw."""
    losses = _losses(folder)
    if not any(len(points) > 1 for points in losses.values()):
        return None
    path = folder / "curve.svg"
    lines = [_line(name, points) for name, points in losses.items() if points]
    path.write_text(line_plot(lines, x="step", title="Loss", height=400), encoding="utf-8")
    return path


def _losses(folder: Path) -> dict[str, list[Point]]:
    """Return training and validation loss by step; what is not a number is left out.

    A point without a value separates two fits, each of which begins with the first step.
    """
    lines: dict[str, list[Point]] = {"train_loss": [], "val_loss": []}
    fits = {name: FitTracker() for name in lines}
    for row in read_metrics(folder):
        name = {"train": "train_loss", "val": "val_loss"}.get(row.get("kind", ""), "")
        if name and row.get(name) is not None:
            if fits[name].starts_fit(row["step"], row["fit"]):
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
