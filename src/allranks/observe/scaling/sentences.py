"""What a study says, in sentences: up to which size it pays, what is lost, what not to believe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from allranks.observe.scaling.achieved import WALL_TIME
from allranks.observe.scaling.doubts import doubt_sentences, warnings
from allranks.observe.scaling.laws import LEAST_POINTS, LawFit, falls
from allranks.observe.scaling.losses import loss_sentence
from allranks.observe.scaling.overlaps import overlap
from allranks.observe.scaling.study_file import Study

if TYPE_CHECKING:
    from allranks.observe.scaling.analysis import Analysis, SizeResult

PAYS = 0.7
"""The efficiency from which on a size is said to pay."""
_UNEVEN = 0.1
"""A spread of repetitions from which on they are not to be believed."""


def pays(row: SizeResult) -> bool:
    """As the table shows it: what is rounded to 0.70 pays."""
    return round(row.efficiency or 0, 2) >= PAYS


def sentences(study: Study, found: Analysis, trusted: Sequence[SizeResult]) -> list[str]:
    """The answer, then the reservations; ``trusted`` are the rows that can be compared."""
    return [*_answers(study, found, trusted), *_reservations(study, found, trusted)]


def _answers(study: Study, found: Analysis, trusted: Sequence[SizeResult]) -> Iterator[str]:
    if len(trusted) < 2:
        return
    yield _verdict(study, found, trusted)
    if found.kind in ("strong", "weak"):
        last, here = trusted[-1], study.where == "local"
        if text := loss_sentence(study.axis.count(last.size), last.lost, found.kind, here=here):
            yield text
        if found.fit:
            yield _law(study, found.fit, trusted[0].size)
        elif len(trusted) >= LEAST_POINTS:
            yield _no_law(study, found.kind, trusted)


def _reservations(study: Study, found: Analysis, trusted: Sequence[SizeResult]) -> Iterator[str]:
    if any(row.achieved and row.achieved.source == WALL_TIME for row in found.rows):
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
            "something else was going on. Measure again on quiet nodes, or more often (--repeat)."
        )
    if study.where == "slurm" and (text := overlap(study)):
        yield text
    yield from doubt_sentences(study, found.rows)
    yield from warnings(study)


def _verdict(study: Study, found: Analysis, trusted: Sequence[SizeResult]) -> str:
    first, largest = trusted[0], trusted[-1]
    if found.pays is None or found.pays == first.size:
        second = trusted[1]
        return (
            f"More than {study.axis.count(first.size)} does not pay: at {study.axis.count(second.size)} "
            f"the efficiency is {second.efficiency:.2f}, below {PAYS:.2f}."
        )
    text = f"Up to {study.axis.count(found.pays)} it pays: an efficiency of at least {PAYS:.2f}"
    if found.pays == largest.size:
        return f"{text}; it is {largest.efficiency:.2f} there, and nothing larger was measured."
    after = next(row for row in trusted if row.size > found.pays)
    return f"{text}; at {study.axis.count(after.size)} it is {after.efficiency:.2f}."


def _uneven(study: Study, found: Analysis, trusted: Sequence[SizeResult]) -> str:
    """A size that would pay again after one that does not is a size that was measured badly."""
    after = [row for row in trusted if found.pays and row.size > found.pays]
    again = next(filter(pays, after), None)
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
    place = falls(speedups)
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
