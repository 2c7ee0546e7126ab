"""What to change next time: one small function per advice, in a table.

Each takes the facts and returns its advice, or None when its numbers are unknown or fine. Thresholds are
named beside them. Advice on use needs enough measurements, and advice that follows from another one is
left out: GPUs that wait for data are not also reported as idle.
"""

from __future__ import annotations

from collections.abc import Callable

from allranks.observe.report.advice import outcome_advice as course
from allranks.observe.report.advice import resource_advice as gpus
from allranks.observe.report.advice import resource_advice as machine
from allranks.observe.report.advice import step_advice as steps
from allranks.observe.report.advice.base import SEVERITIES, Advice
from allranks.observe.report.model import RunFacts

ENOUGH_SECONDS = 60.0
ENOUGH_SAMPLES = 5
"""Below these a run is too short for advice on how it used what it had."""

Rule = Callable[[RunFacts], "Advice | None"]
ALWAYS: tuple[Rule, ...] = (
    course.failure,
    course.gpu_memory_out,
    course.diverged,
    course.time_limit,
    course.resume,
    course.lost_work,
)
"""On how it went: true of short runs too."""
ON_USE: tuple[Rule, ...] = (
    gpus.idle_gpus,
    steps.stragglers,
    machine.cpus_short,
    steps.data,
    steps.communication,
    steps.checkpoints,
    gpus.gpu_use,
    gpus.hot_gpus,
    gpus.capped_gpus,
    machine.cpus,
    machine.memory,
    steps.mfu,
    gpus.gpu_memory,
)
EXPLAINED = {
    "gpus-low": (
        "data",
        "cpus-short",
        "communication",
        "checkpoints",
        "stragglers",
        "mfu",
        "failed",
    ),
    "data": ("cpus-short",),
    "cpus": ("data", "cpus-short"),
    "mfu": ("data", "cpus-short", "communication", "checkpoints", "stragglers"),
    "gpu-memory": ("gpus-low",),
    "checkpoints": ("lost-work",),
}
"""Advice that is left out beside one of these, which is its cause or says the opposite."""


def advise(facts: RunFacts) -> list[Advice]:
    """Return all advice, the most important first."""
    rules = (
        [*ALWAYS, *ON_USE]
        if is_measured_enough(facts)
        else [*ALWAYS, _memory_out, course.too_short]
    )
    found = [advice for rule in rules if (advice := rule(facts)) is not None]
    ids = {advice.id for advice in found}
    kept = [advice for advice in found if not ids & set(EXPLAINED.get(advice.id, ()))]
    return sorted(kept, key=lambda advice: SEVERITIES.index(advice.severity))


def is_measured_enough(facts: RunFacts) -> bool:
    """Return whether enough was measured to judge the use of resources."""
    used = facts.used
    if facts.mixed:
        return False
    if used.source == "accounting":
        return used.seconds >= ENOUGH_SECONDS
    return used.seconds >= ENOUGH_SECONDS and used.samples >= ENOUGH_SAMPLES


def _memory_out(facts: RunFacts) -> Advice | None:
    """Advise on memory that ran out, however short the job was."""
    return machine.memory_out(facts) if facts.state == "out of memory" else None


__all__ = ["Advice", "advise", "is_measured_enough"]
