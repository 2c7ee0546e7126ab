"""The results of a study: a row per size, the fitted scaling law, and where the time of a step was lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from allranks.core.formatting import percent
from allranks.observe.scaling.measurement import Measurement
from allranks.observe.scaling.scaling_study import Point

LEAST_POINTS = 3
_OFF = 0.1
"""A law that is off by a larger share at any size does not describe the points."""


@dataclass(frozen=True)
class LawFit:
    """A scaling law with the serial share fitted by least squares."""

    law: str
    """"Amdahl" for strong scaling, "Gustafson" for weak."""
    serial: float
    """From 0 to 1."""

    def speedup(self, growth: float) -> float:
        """Return the law's speed-up at ``growth`` times the smallest size."""
        if self.law == "Amdahl":
            return 1 / (self.serial + (1 - self.serial) / growth)
        return growth - self.serial * (growth - 1)

    @property
    def limit(self) -> float | None:
        """Return the speed-up that no size exceeds; None without a limit."""
        return 1 / self.serial if self.law == "Amdahl" and self.serial > 0 else None


def fit_law(kind: str, growths: Sequence[float], speedups: Sequence[float]) -> LawFit | None:
    """Fit the law of this kind of scaling; None with fewer than three points, or where it does not hold.

    ``growths`` are sizes over the smallest one, so the first point lies on the curve whatever the share.
    """
    if len(growths) < LEAST_POINTS:
        return None
    if kind == "strong":  # 1/S = s + (1 - s)/g
        pairs = [(1 - 1 / g, 1 / s - 1 / g) for g, s in zip(growths, speedups, strict=True)]
        law = "Amdahl"
    else:  # S = g - s (g - 1)
        pairs = [(g - 1, g - s) for g, s in zip(growths, speedups, strict=True)]
        law = "Gustafson"
    weight = sum(a * a for a, _ in pairs)
    serial = sum(a * b for a, b in pairs) / weight if weight else 0.0
    fit = LawFit(law, min(max(serial, 0.0), 1.0))
    return fit if _holds(fit, growths, speedups) else None


def first_drop(speedups: Sequence[float]) -> int | None:
    """Return the index of the first speed-up below the one before; None without any."""
    return next((n for n, (a, b) in enumerate(pairwise(speedups), start=1) if b < a), None)


def _holds(fit: LawFit, growths: Sequence[float], speedups: Sequence[float]) -> bool:
    """Return whether the law describes the points: both laws rise, Amdahl's never above its limit."""
    if first_drop(speedups) is not None or (fit.limit and max(speedups) > fit.limit):
        return False
    pairs = zip(growths, speedups, strict=True)
    return all(abs(fit.speedup(growth) / real - 1) <= _OFF for growth, real in pairs)


GROUPS = {
    "communication": ("communication",),
    "stragglers": (),
    "data": ("data",),
    "compute": ("forward", "backward"),
    "optimizer": ("optimizer",),
    "checkpoint": ("checkpoint",),
    "other": ("other",),
    "step": (),
}
"""Groups of lost time and their phases. Waiting for slow ranks is subtracted from communication, where it is
measured; "step" is a step of the script's own, whose phases are unknown."""

_WORTH_NAMING = 0.05

_MEANS = {
    "communication": "communication",
    "stragglers": "waiting for slower ranks",
    "data": "waiting for data",
    "compute": "forward and backward that became slower",
    "optimizer": "the optimizer",
    "checkpoint": "checkpoints",
    "other": "work outside the training step",
    "step": "the script's own step, its communication included",
}
_BATCH = (
    "batch, accumulate gradients over several (TrainConfig(accumulate=…)), or send fewer bytes "
    "(precision='bf16')."
)
_STRONG = {
    "communication": f"each rank has too little work between two exchanges. Use a larger global {_BATCH}",
    "compute": "small batches do not fill the device, or the ranks disturb each other. Use a larger "
    "global batch.",
    "optimizer": "its work does not shrink with the batch. Shard it: strategy='fsdp'.",
}
_WEAK = {
    "communication": f"exchanging gradients outlasts the backward pass. Give each rank a larger {_BATCH}",
    "compute": "the ranks disturb each other over cores, memory or power. Try fewer ranks on a machine.",
    "optimizer": "it should not grow with the ranks. `allranks top` shows whether cores are short.",
}
_ADVICE = {
    "stragglers": "`allranks top` names the slow rank. Look at its CPUs (--bind) and at samples of uneven "
    "size.",
    "data": "the loaders do not keep up. Give the DataLoader more num_workers.",
    "checkpoint": "save less often, or with checkpoint_async=True.",
    "step": "its phases are not measured. Use a larger batch, or let the Trainer do the step.",
    "other": "callbacks, logging, or Python between the steps. Look at what the script does there.",
}
_ON_NODES = {
    "communication": "See that the ranks meet over the fast network (--interface).",
    "compute": "Try --exclusive and --bind auto.",
    "stragglers": "Look at its node, too.",
    "data": "Ask for --cpus-per-task to match, and put the data nearer to the nodes.",
}
"""What can be tried besides where the ranks are not all on this machine."""


def step_groups(found: Measurement) -> dict[str, float]:
    """Return the seconds of a step by group; empty when its phases are unknown."""
    phases = found.phases
    if not phases:
        return {}
    parts = {
        name: sum(phases.get(phase, 0.0) for phase in own) for name, own in GROUPS.items() if own
    }
    parts["stragglers"] = min(found.waiting or 0.0, parts["communication"])
    parts["communication"] -= parts["stragglers"]
    parts["step"] = 0.0
    if "forward" not in phases:
        parts["step"], parts["other"] = parts["other"], 0.0
    return {name: parts[name] for name in GROUPS}


def lost_time(first: Measurement, here: Measurement, shrink: float) -> dict[str, float]:
    """Return the seconds of a step beyond the ideal, by group.

    ``shrink`` is what becomes of a step in the ideal case: its time at the smallest size over the growth
    in strong scaling, the same time in weak scaling.
    """
    ideal, real = step_groups(first), step_groups(here)
    if not ideal or not real:
        return {}
    return {name: real[name] - ideal[name] * shrink for name in GROUPS}


def loss_shares(lost: Mapping[str, float], step_seconds: float | None) -> dict[str, float]:
    """Return lost times as shares of the step."""
    if not lost or not step_seconds:
        return {}
    return {name: value / step_seconds for name, value in lost.items()}


def largest_loss(lost: Mapping[str, float]) -> tuple[str, float] | None:
    """Return the group with the largest share, if it matters."""
    if not lost:
        return None
    name = max(lost, key=lambda group: lost[group])
    return (name, lost[name]) if lost[name] >= _WORTH_NAMING else None


def loss_sentence(where: str, lost: Mapping[str, float], kind: str, *, here: bool) -> str:
    """Return ``At 4 nodes 31 % of a step is lost to communication: …``; empty when nothing stands out.

    ``here``: all ranks were on this machine.
    """
    found = largest_loss(lost)
    if found is None:
        return ""
    name, share = found
    advice = (_ADVICE | (_STRONG if kind == "strong" else _WEAK))[name]
    more = "" if here else f" {_ON_NODES.get(name, '')}"
    return (
        f"At {where} {percent(share)} of a step is lost to {_MEANS[name]}: {advice}{more}".rstrip()
    )


@dataclass(frozen=True)
class SizeResult:
    """The result of one size, over its repetitions."""

    size: int
    point: Point
    """The one that stands for all: with the median speed, or that failed."""
    measurement: Measurement | None = None
    rate: float | None = None
    """The median over repetitions."""
    low: float | None = None
    high: float | None = None
    speedup: float | None = None
    efficiency: float | None = None
    cost: float | None = None
    """GPU-hours, or core-hours without GPUs, of the requested units."""
    hours: float | None = None
    """Wall hours of the requested units."""
    lost: dict[str, float] = field(default_factory=dict)
    """Shares of a step that were lost, by what they went to."""
    unreliable: str = ""
    """Why it says nothing about scaling; see doubts.py."""
    problems: tuple[str, ...] = ()

    @property
    def spread(self) -> float:
        """Return half the distance from the slowest to the fastest repetition, as a share of the speed."""
        return ((self.high or 0) - (self.low or 0)) / 2 / self.rate if self.rate else 0.0


@dataclass(frozen=True)
class Analysis:
    """The analysis of a whole study."""

    rows: list[SizeResult]
    kind: str | None
    """"strong", "weak", "mixed", or None when unknown."""
    fit: LawFit | None = None
    efficient_up_to: int | None = None
    """The largest size up to which every efficiency is at least `sentences.PAYS`."""
    conclusions: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def unit(self) -> str:
        return next((row.measurement.unit for row in self.rows if row.measurement), "samples")

    @property
    def per_gpu(self) -> bool:
        """Return whether the cost is in GPU-hours."""
        return any(row.point.gpus for row in self.rows)
