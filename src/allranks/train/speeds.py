"""From what the ranks spent to the numbers of a ``train`` line."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan

from allranks.train.marks import MARKED
from allranks.train.timing import SHARED


def speeds(shared: Sequence[float], ranks: int) -> dict[str, float]:
    """By the keys of the line; what not all ranks know is left out. ``shared`` are the ranks' sums."""
    pairs = zip(SHARED, shared, strict=True)
    mean = {name: total / ranks for name, total in pairs if not isnan(total)}
    if not mean.get("step"):
        return {}
    found = _work(mean, ranks) | _seconds(mean)
    return {name: _short(value) for name, value in found.items()}


def _seconds(mean: dict[str, float]) -> dict[str, float]:
    """What a step's time went to; the parts add up to the step."""
    if "data" not in mean:
        return {"step_seconds": mean["step"]}
    names = [name for name in ("data", *MARKED, "checkpoint") if name in mean]
    other = max(mean["step"] - sum(mean[name] for name in names), 0.0)
    parts = {f"{name}_seconds": mean[name] for name in names}
    return {"step_seconds": mean["step"], **parts, "other_seconds": other}


def _work(mean: dict[str, float], ranks: int) -> dict[str, float]:
    """Of all ranks together."""
    speed = ranks * mean.get("samples", 0.0) / mean["step"]
    flops = speed * mean.get("flops", 0.0)
    found = {
        "samples_per_second": speed,
        "tokens_per_second": speed * mean.get("tokens", 0.0),
        "flops_per_second": flops,
        "mfu": flops / (ranks * mean["peak"]) if "peak" in mean else 0.0,
    }
    return {name: value for name, value in found.items() if value}


def _short(value: float) -> float:
    """More digits than a clock can tell only make files long."""
    return float(f"{value:.5g}")
