"""The loss curve as a picture: ``curve.svg`` in the run folder, drawn from ``metrics.jsonl``."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

Point = tuple[float, float]
WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 720, 400, 64, 44, 36, 16
COLOURS = {"train_loss": "#2563eb", "val_loss": "#ea580c"}
MOST_POINTS = 600


def draw_curve(folder: Path) -> Path | None:
    """Write the picture; None when there is nothing to draw."""
    lines = read_losses(folder / "metrics.jsonl")
    if not any(len(points) > 1 for points in lines.values()):
        return None
    path = folder / "curve.svg"
    path.write_text(svg({name: _thinned(points) for name, points in lines.items()}))
    return path


def read_losses(path: Path) -> dict[str, list[Point]]:
    """Training and validation loss by step; what is not a number is left out."""
    lines: dict[str, list[Point]] = {"train_loss": [], "val_loss": []}
    if not path.exists():
        return lines
    for text in path.read_text().splitlines():
        try:
            row = json.loads(text)
        except ValueError:  # the last line of a run that was killed
            continue
        name = {"train": "train_loss", "val": "val_loss"}.get(row.get("kind"), "")
        if name and row.get(name) is not None:
            lines[name].append((row["step"], row[name]))
    return lines


def svg(lines: dict[str, Sequence[Point]]) -> str:
    """Axes, ticks and one line each."""
    points = [point for line in lines.values() for point in line]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    x_ticks, y_ticks = ticks(min(xs), max(xs)), ticks(min(ys), max(ys))
    x_low, x_high = min(x_ticks[0], min(xs)), max(x_ticks[-1], max(xs))
    y_low, y_high = min(y_ticks[0], min(ys)), max(y_ticks[-1], max(ys))

    def at(x: float, y: float) -> tuple[float, float]:
        across = (x - x_low) / ((x_high - x_low) or 1) * (WIDTH - LEFT - RIGHT)
        up = (y - y_low) / ((y_high - y_low) or 1) * (HEIGHT - TOP - BOTTOM)
        return round(LEFT + across, 1), round(HEIGHT - BOTTOM - up, 1)

    parts = [_grid_line(at, x_low, x_high, y) for y in y_ticks]
    parts += [_text(at(x, y_low)[0], HEIGHT - BOTTOM + 18, f"{x:g}", "middle") for x in x_ticks]
    parts += [_text(LEFT + (WIDTH - LEFT - RIGHT) / 2, HEIGHT - 8, "step", "middle")]
    for number, (name, line) in enumerate((n, p) for n, p in lines.items() if p):
        path = " ".join(f"{x},{y}" for x, y in (at(*point) for point in line))
        colour = COLOURS[name]
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(_text(LEFT + 90 * number, 20, name.replace("_", " "), "start", colour))
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="system-ui, sans-serif" font-size="12">\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>\n{body}\n</svg>\n'
    )


def ticks(low: float, high: float) -> list[float]:
    """About five round numbers that cover the range."""
    span = (high - low) or abs(high) or 1.0
    size = 10.0 ** math.floor(math.log10(span / 5))
    step = next(size * factor for factor in (1, 2, 5, 10) if span / (size * factor) <= 5)
    first = math.floor(low / step)
    last = math.ceil(high / step)
    return [round(number * step, 12) for number in range(first, last + 1)]


def _thinned(points: Sequence[Point]) -> list[Point]:
    stride = max(1, math.ceil(len(points) / MOST_POINTS))
    kept = list(points[::stride])
    return kept if not points or kept[-1] == points[-1] else [*kept, points[-1]]


def _grid_line(at: Callable[[float, float], Point], x_low: float, x_high: float, y: float) -> str:
    (left, level), (right, _) = at(x_low, y), at(x_high, y)
    line = f'<line x1="{left}" y1="{level}" x2="{right}" y2="{level}" stroke="#e5e7eb"/>'
    return line + _text(LEFT - 8, level + 4, f"{y:g}", "end")


def _text(x: float, y: float, text: str, anchor: str, colour: str = "#374151") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{colour}">{text}</text>'
