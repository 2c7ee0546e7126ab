"""What not to believe: points that say nothing about scaling, and a machine that was busy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from allranks.core.formatting import percent, step_time
from allranks.observe.scaling.achieved import METRICS, WALL_TIME, Achieved
from allranks.observe.scaling.study_file import Point, Study

if TYPE_CHECKING:
    from allranks.observe.scaling.analysis import SizeResult

SHARED, SHORT, VAGUE = "shared", "short", "vague"
"""Its ranks share cores; it was over too soon; its speed is not known well enough."""
_LEAST_SECONDS, _WISHED_SECONDS = 1.0, 10.0
"""Below the first, noise and what is done once in a window count; the second is what we advise."""
_MOST_UNCERTAIN = 0.1


def doubt_of(study: Study, point: Point, achieved: Achieved | None = None) -> str:
    """Why the point says nothing about scaling; empty when it does."""
    if study.shares_cores(point):
        return SHARED
    if achieved and (achieved.seconds or _LEAST_SECONDS) < _LEAST_SECONDS:
        return SHORT
    return VAGUE if achieved and achieved.uncertainty > _MOST_UNCERTAIN else ""


def doubt_sentences(study: Study, rows: Sequence[SizeResult]) -> Iterator[str]:
    """For each kind of doubt the worst point, and what to do."""
    short = [(row, row.achieved) for row in rows if row.doubt == SHORT and row.achieved]
    if short:
        row, found = min(short, key=lambda pair: pair[1].seconds or 0.0)
        yield _too_short(study, study.axis.count(row.size), found)
    vague = [(row, row.achieved) for row in rows if row.doubt == VAGUE and row.achieved]
    if vague:
        row, found = max(vague, key=lambda pair: pair[1].uncertainty)
        yield _too_vague(study.axis.count(row.size), found)


def warnings(study: Study) -> Iterator[str]:
    """What the numbers of this machine cannot say, known before they are measured."""
    cpus = study.machine_cpus or 1
    cores = f"{cpus} core{'s' if cpus > 1 else ''}"
    if shared := [point.size for point in study.points if study.shares_cores(point)]:
        yield (
            f"This machine has {cores}: from {study.axis.count(min(shared))} on the ranks share them, "
            "and such numbers (marked *) say nothing about scaling."
        )
    if study.load is not None and study.load > cpus / 2:
        yield (
            f"This machine was busy when the study began (load {study.load:.1f} on {cores}): expect "
            "numbers that are too low, and uneven ones. --repeat 3 shows how much."
        )


def _too_short(study: Study, where: str, found: Achieved) -> str:
    more = "Give it more work."
    if found.source == METRICS and found.seconds:
        steps = study.steps * _WISHED_SECONDS / found.seconds
        unit = 10 ** int(math.log10(steps))
        more = f"Measure more steps: --steps {math.ceil(steps / unit) * unit}"
    return (
        f"At {where} {step_time(found.seconds)} were measured, too little to say anything about scaling "
        f"(marked *). {more}"
    )


def _too_vague(where: str, found: Achieved) -> str:
    why = "the speed went up and down"
    more = "Measure again where it is quiet, or for longer (--steps)."
    if found.source == WALL_TIME:
        why, more = "the end was written in whole seconds", "Measure again."
    return (
        f"At {where} {why}, so it is known to ± {percent(found.uncertainty)} only, and nothing is "
        f"concluded from it (marked *). {more}"
    )
