"""The conclusions of a study in sentences: the efficient sizes, what is lost, which numbers are unreliable."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from allranks.core.formatting import percent, step_time
from allranks.observe.scaling.measurement import METRICS, WALL_TIME, Measurement
from allranks.observe.scaling.scaling_study import Point, Study
from allranks.runs.attempt import Attempt
from allranks.runs.node_samples import NodeSource, find_nodes

if TYPE_CHECKING:
    from allranks.observe.scaling.size_results import SizeResult
from functools import lru_cache
from itertools import combinations
from pathlib import Path

from allranks.observe.scaling.scaling_study import DONE
from allranks.observe.scaling.size_results import LEAST_POINTS, LawFit, first_drop, loss_sentence

if TYPE_CHECKING:
    from allranks.observe.scaling.size_results import Analysis, SizeResult


_NAMED = 6


def hosts_of(attempt: Attempt) -> list[str]:
    """Return the nodes on which the ranks ran, each once."""
    return sorted({rank.host for rank in attempt.ranks() if rank.host})


def hardware(study: Study) -> str:
    """Describe the hardware: ``node1, node2; NVIDIA H200``; empty when unknown."""
    hosts: set[str] = set()
    gpus: set[str] = set()
    for point in study.points:
        run = study.run_of(point)
        last = run.last_attempt if run else None
        if last is not None:
            hosts |= set(hosts_of(last))
            gpus |= _gpu_names(last)
    cores = f"{study.machine_cpus} cores" if study.machine_cpus else ""
    many = {point.cpus // point.ranks for point in study.points if point.ranks}
    same = many.pop() if study.is_local and len(many) == 1 else 1
    threads = f"{same} threads for each rank" if same > 1 else ""
    return "; ".join(filter(None, [_named(hosts), ", ".join(sorted(gpus)), cores, threads]))


def _named(hosts: set[str]) -> str:
    ordered = sorted(hosts, key=lambda host: (len(host), host))  # node2 before node10
    more = f" and {len(ordered) - _NAMED} more" if len(ordered) > _NAMED else ""
    return ", ".join(ordered[:_NAMED]) + more


def _gpu_names(attempt: Attempt) -> set[str]:
    nodes: dict[int, NodeSource] = {}
    find_nodes(attempt.path, nodes)
    names: set[str] = set()
    for node in nodes.values():
        node.refresh()
        names |= {str(gpu["name"]) for gpu in node.gpus.values() if gpu.get("name")}
    return names


SHARED, SHORT, VAGUE = "shared", "short", "vague"
"""Its ranks share cores; it was over too soon; its speed is not known well enough."""
_LEAST_SECONDS, _WISHED_SECONDS = 1.0, 10.0
"""Below the first, noise and what is done once in a window count; the second is what we advise."""
_MOST_UNCERTAIN = 0.1


def unreliable_reason(study: Study, point: Point, achieved: Measurement | None = None) -> str:
    """Return why the point's speed is unreliable; empty when it is reliable."""
    if study.shares_cores(point):
        return SHARED
    if achieved and (achieved.seconds or _LEAST_SECONDS) < _LEAST_SECONDS:
        return SHORT
    return VAGUE if achieved and achieved.uncertainty > _MOST_UNCERTAIN else ""


def unreliable_notes(study: Study, rows: Sequence[SizeResult]) -> Iterator[str]:
    """Yield, for each reason, the worst point and what to do."""
    short = [(row, row.measurement) for row in rows if row.unreliable == SHORT and row.measurement]
    if short:
        row, found = min(short, key=lambda pair: pair[1].seconds or 0.0)
        yield _too_short(study, study.axis.count(row.size), found)
    vague = [(row, row.measurement) for row in rows if row.unreliable == VAGUE and row.measurement]
    if vague:
        row, found = max(vague, key=lambda pair: pair[1].uncertainty)
        yield _too_vague(study.axis.count(row.size), found)


def machine_notes(study: Study) -> Iterator[str]:
    """Yield what limits measurements on this machine, known before they are made."""
    cpus = study.machine_cpus or 1
    cores = f"{cpus} core{'s' if cpus > 1 else ''}"
    if shared := [point.size for point in study.points if study.shares_cores(point)]:
        yield (
            f"This machine has {cores}: from {study.axis.count(min(shared))} on the ranks share them, "
            "and such numbers (marked *) are unreliable."
        )
    if study.load is not None and study.load > cpus / 2:
        yield (
            f"This machine was busy when the study began (load {study.load:.1f} on {cores}): expect "
            "numbers that are too low, and uneven ones. --repeat 3 shows how much."
        )


def _too_short(study: Study, where: str, found: Measurement) -> str:
    more = "Give it more work."
    if found.source == METRICS and found.seconds:
        steps = study.steps * _WISHED_SECONDS / found.seconds
        unit = 10 ** int(math.log10(steps))
        more = f"Measure more steps: --steps {math.ceil(steps / unit) * unit}"
    return (
        f"At {where} {step_time(found.seconds)} were measured, too little for a reliable number "
        f"(marked *). {more}"
    )


def _too_vague(where: str, found: Measurement) -> str:
    why = "the speed went up and down"
    more = "Measure again where it is quiet, or for longer (--steps)."
    if found.source == WALL_TIME:
        why, more = "the end was written in whole seconds", "Measure again."
    return (
        f"At {where} {why}, so it is known to ± {percent(found.uncertainty)} only, and nothing is "
        f"concluded from it (marked *). {more}"
    )


def overlap_note(study: Study) -> str:
    """Return a sentence that names two points that ran at the same time on a node; empty without any."""
    for (one, mine), (other, theirs) in combinations(_finished_points(study), 2):
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
    """Return the hosts of an attempt that has ended, read once: it has a file for each rank."""
    return frozenset(hosts_of(Attempt.open(attempt)))


def _finished_points(study: Study) -> Iterator[tuple[Point, Attempt]]:
    for point in study.points:
        run = study.run_of(point) if point.state == DONE else None
        last = run.last_attempt if run else None
        if last is not None:
            yield point, last


def _same_time(one: Attempt, other: Attempt) -> bool:
    if not (one.start and one.end and other.start and other.end):
        return False
    return one.start < other.end and other.start < one.end


EFFICIENT = 0.7
"""The efficiency from which on a size is said to pay."""
_UNEVEN = 0.1
"""A spread of repetitions from which on they are not to be believed."""


def is_efficient(row: SizeResult) -> bool:
    """Return whether the efficiency, rounded as the table shows it, reaches EFFICIENT."""
    return round(row.efficiency or 0, 2) >= EFFICIENT


def draw_conclusions(study: Study, found: Analysis, trusted: Sequence[SizeResult]) -> list[str]:
    """Return the answer, then the reservations; ``trusted`` are the rows that can be compared."""
    return [*_main_conclusions(study, found, trusted), *_reservations(study, found, trusted)]


def _main_conclusions(
    study: Study, found: Analysis, trusted: Sequence[SizeResult]
) -> Iterator[str]:
    if len(trusted) < 2:
        return
    yield _verdict(study, found, trusted)
    if found.kind in ("strong", "weak"):
        last, here = trusted[-1], study.is_local
        if text := loss_sentence(study.axis.count(last.size), last.lost, found.kind, here=here):
            yield text
        if found.fit:
            yield _law(study, found.fit, trusted[0].size)
        elif len(trusted) >= LEAST_POINTS:
            yield _no_law(study, found.kind, trusted)


def _reservations(study: Study, found: Analysis, trusted: Sequence[SizeResult]) -> Iterator[str]:
    if any(row.measurement and row.measurement.source == WALL_TIME for row in found.rows):
        yield (
            "Measured by the wall time of the ranks, their start included; strong scaling only. "
            r"More exact: --metric 'samples/s: ([\d.]+)', with what the script prints."
        )
    if text := _uneven(study, found, trusted):
        yield text
    widest = max(found.rows, key=lambda row: row.spread, default=None)
    if widest and widest.spread > _UNEVEN:
        yield (
            f"The speeds of {study.axis.count(widest.size)} differ by ± {widest.spread * 100:.0f} %: "
            "something else ran at the same time. Measure again on quiet nodes, or more often (--repeat)."
        )
    if study.is_queued and (text := overlap_note(study)):
        yield text
    yield from unreliable_notes(study, found.rows)
    yield from machine_notes(study)


def _verdict(study: Study, found: Analysis, trusted: Sequence[SizeResult]) -> str:
    first, largest = trusted[0], trusted[-1]
    if found.efficient_up_to is None or found.efficient_up_to == first.size:
        second = trusted[1]
        return (
            f"More than {study.axis.count(first.size)} is not efficient: at {study.axis.count(second.size)} "
            f"the efficiency is {second.efficiency:.2f}, below {EFFICIENT:.2f}."
        )
    largest_efficient = study.axis.count(found.efficient_up_to)
    text = f"Scaling is efficient up to {largest_efficient} (an efficiency of at least {EFFICIENT:.2f})"
    if found.efficient_up_to == largest.size:
        return f"{text}; it is {largest.efficiency:.2f} there, and nothing larger was measured."
    after = next(row for row in trusted if row.size > found.efficient_up_to)
    return f"{text}; at {study.axis.count(after.size)} it is {after.efficiency:.2f}."


def _uneven(study: Study, found: Analysis, trusted: Sequence[SizeResult]) -> str:
    """Return a note on a size that is efficient after a smaller one that is not: it was measured badly."""
    after = [row for row in trusted if found.efficient_up_to and row.size > found.efficient_up_to]
    again = next(filter(is_efficient, after), None)
    if again is None:
        return ""
    return (
        f"At {study.axis.count(again.size)} the efficiency is {again.efficiency:.2f} again, after "
        f"{after[0].efficiency:.2f} at {study.axis.count(after[0].size)}: the numbers are uneven. "
        "Measure again, several times (--repeat)."
    )


def _law(study: Study, fit: LawFit, base: int) -> str:
    text = f"{fit.law}'s law fits a serial share of {fit.serial * 100:.1f} % (an estimate by least squares)"
    if fit.limit and fit.limit < 10_000:
        return f"{text}: at most {fit.limit:.3g} times as fast as {study.axis.count(base)}."
    return f"{text}."


def _no_law(study: Study, kind: str, trusted: Sequence[SizeResult]) -> str:
    speedups = [row.speedup or 0 for row in trusted]
    place = first_drop(speedups)
    if place is not None:
        more, less = (
            study.axis.count(trusted[place].size),
            study.axis.count(trusted[place - 1].size),
        )
        return (
            f"{more} are slower than {less}: {speedups[place]:.2f} against {speedups[place - 1]:.2f} "
            f"times the speed of {study.axis.count(trusted[0].size)}."
        )
    law = "Amdahl" if kind == "strong" else "Gustafson"
    return f"{law}'s law does not describe these speed-ups, so none is estimated beyond them."
