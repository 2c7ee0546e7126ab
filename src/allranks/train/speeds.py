"""From what the ranks spent to the numbers of a ``train`` line."""

from __future__ import annotations

from collections.abc import Sequence

from allranks.train.marks import PHASES
from allranks.train.timing import SHARED


def speeds(shared: Sequence[float], ranks: int, samples: int) -> dict[str, float]:
    """By the keys of the line; what is not known is left out.

    ``shared`` are the ranks' sums, ``samples`` those of a full step over all ranks, 0 when unknown.
    """
    mean = {name: total / ranks for name, total in zip(SHARED, shared, strict=True)}
    if not mean["step"]:
        return {}
    found = _work(mean, ranks, samples) | _seconds(mean)
    return {name: _short(value) for name, value in found.items()}


def _seconds(mean: dict[str, float]) -> dict[str, float]:
    """What a step's time went to; the parts add up to the step."""
    if mean["timed"] < 1:
        return {"step_seconds": mean["step"]}
    marked = PHASES if mean["marked"] == 1 else ()
    names = ("data", *marked, "checkpoint")
    other = max(mean["step"] - sum(mean[name] for name in names), 0.0)
    parts = {f"{name}_seconds": mean[name] for name in names}
    return {"step_seconds": mean["step"], **parts, "other_seconds": other}


def _work(mean: dict[str, float], ranks: int, samples: int) -> dict[str, float]:
    speed = samples / mean["step"]
    found = {
        "samples_per_second": speed,
        "tokens_per_second": speed * mean["tokens"],
        "flops_per_second": speed * mean["flops"],
    }
    if mean["peak"]:
        found["mfu"] = found["flops_per_second"] / (ranks * mean["peak"])
    return {name: value for name, value in found.items() if value}


def _short(value: float) -> float:
    """More digits than a clock can tell only make files long."""
    return float(f"{value:.5g}")
