"""Points that ran at the same time on the same node: each slows the other down, and nobody would know."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations
from pathlib import Path

from allranks.observe.scaling.hardware import hosts_of
from allranks.observe.scaling.study_file import DONE, Point, Study
from allranks.runs.attempt import Attempt


def overlap(study: Study) -> str:
    """A sentence that names two such points; empty when there are none."""
    for (one, mine), (other, theirs) in combinations(_lives(study), 2):
        if not _same_time(mine, theirs):
            continue
        if shared := sorted(_hosts(mine.path) & _hosts(theirs.path)):
            sizes = f"{study.axis.count(one.size)} and {study.axis.count(other.size)}"
            if one.size == other.size:
                sizes = f"Two runs of {study.axis.count(one.size)}"
            return (
                f"{sizes} were measured at the same time on {shared[0]}, and each slowed the other down. "
                "Measure again with --exclusive or --one-by-one."
            )
    return ""


@lru_cache(maxsize=1024)
def _hosts(attempt: Path) -> frozenset[str]:
    """Of an attempt that has ended: a file for each rank, so it is read once."""
    return frozenset(hosts_of(Attempt.open(attempt)))


def _lives(study: Study) -> Iterator[tuple[Point, Attempt]]:
    for point in study.points:
        run = study.run_of(point) if point.state == DONE else None
        last = run.last_attempt if run else None
        if last is not None:
            yield point, last


def _same_time(one: Attempt, other: Attempt) -> bool:
    if not (one.start and one.end and other.start and other.end):
        return False
    return one.start < other.end and other.start < one.end
