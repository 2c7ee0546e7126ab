"""From points to what they say: speed-up, efficiency, cost, the kind of scaling, the size that pays."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

from allranks.errors import AllranksError
from allranks.observe.scaling.achieved import Achieved
from allranks.observe.scaling.doubts import SHARED, doubt_of
from allranks.observe.scaling.laws import LawFit, fit_law
from allranks.observe.scaling.losses import lost_time, shares
from allranks.observe.scaling.reading import read_achieved
from allranks.observe.scaling.sentences import pays, sentences
from allranks.observe.scaling.study_file import DONE, FAILED, Point, Study

_ALIKE = 0.1
"""Batches that differ by less are the same: the last one of an epoch may be short."""
MILLION = 1_000_000
_UNSAID = (
    "Only times were measured, and nobody says whether the work stayed the same at every size, so they "
    "cannot be compared. Measure with --strong (it did), or with --weak (it grew with the ranks) and "
    "a --metric."
)
Known = dict[str, Achieved]
"""What points achieved by their run folders: read once, for those who look again and again."""


@dataclass(frozen=True)
class SizeResult:
    """One size, over its repetitions."""

    size: int
    point: Point
    """The one that stands for all: with the median speed, or that failed."""
    achieved: Achieved | None = None
    rate: float | None = None
    """The median over repetitions."""
    low: float | None = None
    high: float | None = None
    speedup: float | None = None
    efficiency: float | None = None
    cost: float | None = None
    """GPU-hours, or core-hours without GPUs, of so many units."""
    hours: float | None = None
    """Wall hours of so many units."""
    lost: dict[str, float] = field(default_factory=dict)
    """Shares of a step that were lost, by what they went to."""
    doubt: str = ""
    """Why it says nothing about scaling; see doubts.py."""
    problems: tuple[str, ...] = ()

    @property
    def spread(self) -> float:
        """Half of the way from the slowest to the fastest repetition, as a share of the speed."""
        return ((self.high or 0) - (self.low or 0)) / 2 / self.rate if self.rate else 0.0


@dataclass(frozen=True)
class Analysis:
    """The whole study."""

    rows: list[SizeResult]
    kind: str | None
    """"strong", "weak", "mixed", or None where nobody can tell."""
    fit: LawFit | None = None
    pays: int | None = None
    """The largest size up to which every efficiency is at least `sentences.PAYS`."""
    sentences: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def unit(self) -> str:
        return next((row.achieved.unit for row in self.rows if row.achieved), "samples")

    @property
    def per_gpu(self) -> bool:
        """Whether the cost is in GPU-hours."""
        return any(row.point.gpus for row in self.rows)


def analyse(study: Study, known: Known | None = None) -> Analysis:
    """All that can be said of a study as far as it is; what is read of points is put into ``known``."""
    rows = [_row(study, size, {} if known is None else known) for size in study.sizes]
    kind, problems = _kind(study, rows)
    if kind != "mixed":
        rows = _compared(rows, kind)
    rows = [_with_cost(study, row) for row in rows]
    trusted = _trusted(rows)
    fit = None
    if kind in ("strong", "weak") and trusted:
        base = trusted[0].size
        fit = fit_law(kind, [r.size / base for r in trusted], [r.speedup or 0 for r in trusted])
    paying = [row.size for row in takewhile(pays, trusted)]
    found = Analysis(rows, kind, fit, max(paying, default=None), problems=problems)
    return replace(found, sentences=sentences(study, found, trusted))


# -- rows


def _row(study: Study, size: int, known: Known) -> SizeResult:
    points = study.at(size)
    found: list[tuple[Achieved, Point]] = []
    problems = [_problem(point) for point in points if point.state == FAILED]
    for point in (point for point in points if point.state == DONE):
        try:
            found.append((measured(study, point, known), point))
        except AllranksError as error:
            problems.append(str(error))
    row = SizeResult(size, points[0], doubt=doubt_of(study, points[0]), problems=tuple(problems))
    if not found:
        open_ = [point for point in points if point.state not in (DONE, FAILED)]
        return replace(row, point=(open_ or points)[0])
    found.sort(key=lambda pair: pair[0].rate)
    middle, point = found[(len(found) - 1) // 2]
    rates = [one.rate for one, _ in found]
    rate = statistics.median(rates)
    row = replace(row, point=point, achieved=middle, doubt=doubt_of(study, point, middle))
    return replace(row, rate=rate, low=min(rates), high=max(rates))


def measured(study: Study, point: Point, known: Known) -> Achieved:
    """What one point achieved, read where it is not known; AllranksError when that cannot be told."""
    if point.run not in known:
        run = study.run_of(point)
        if run is None:
            raise AllranksError(f"its run folder {point.run} is gone.")
        weak = study.asked_kind == "weak"
        known[point.run] = read_achieved(run, metric=study.metric, weak=weak, ranks=point.ranks)
    return known[point.run]


def _problem(point: Point) -> str:
    return point.why or "it failed"


def _trusted(rows: Sequence[SizeResult]) -> list[SizeResult]:
    """Those that can be compared: none where the smallest, with which all are, is in doubt."""
    compared = [row for row in rows if row.speedup and row.efficiency]
    return [row for row in compared if not row.doubt and not compared[0].doubt]


def _compared(rows: Sequence[SizeResult], kind: str | None) -> list[SizeResult]:
    """Every row against the smallest that was measured."""
    first = next((row for row in rows if row.rate), None)
    return [_against(first, row, kind) if first else row for row in rows]


def _against(first: SizeResult, row: SizeResult, kind: str | None) -> SizeResult:
    if not row.rate or not first.rate or row.achieved is None or first.achieved is None:
        return row
    growth = row.size / first.size
    speedup = row.rate / first.rate
    shrink = 1 / growth if kind == "strong" else 1.0
    lost = lost_time(first.achieved, row.achieved, shrink) if kind and row is not first else {}
    return replace(
        row,
        speedup=speedup,
        efficiency=speedup / growth,
        lost=shares(lost, row.achieved.step_seconds),
    )


def _with_cost(study: Study, row: SizeResult) -> SizeResult:
    if not row.rate or row.achieved is None:
        return row
    units = 1 if row.achieved.unit == "runs" else study.samples or MILLION
    hours = units / row.rate / 3600
    cores = study.machine_cpus if row.doubt == SHARED else row.point.cpus
    return replace(row, hours=hours, cost=hours * (row.point.gpus or cores or 1))


# -- the kind


def _kind(study: Study, rows: Sequence[SizeResult]) -> tuple[str | None, list[str]]:
    """By what the points really did; by what was asked where that is not known."""
    asked = study.asked_kind
    known = [(row, row.achieved.batch) for row in rows if row.achieved and row.achieved.batch]
    if len(known) < 2:
        unsaid = asked is None and any(row.achieved and row.achieved.timed for row in rows)
        return ("mixed", [_UNSAID]) if unsaid else (asked, [])
    first, batch = known[0]
    same = all(_alike(one, batch) for _, one in known)
    grows = all(_alike(one, batch * row.size / first.size) for row, one in known)
    if same or grows:
        kind = "strong" if same else "weak"
        note = _other_than_asked(study, asked, kind) if asked and asked != kind else ""
        return kind, [note] if note else []
    listed = ", ".join(f"{one:g} at {study.axis.count(row.size)}" for row, one in known)
    return "mixed", [
        f"The global batch was {listed}: it neither stayed the same (strong scaling) nor grew with "
        "the size (weak scaling), so the speeds cannot be compared."
    ]


def _alike(one: float, other: float) -> bool:
    return abs(one - other) <= _ALIKE * other


def _other_than_asked(study: Study, asked: str, kind: str) -> str:
    place = "{share:…}" if asked == "strong" else "{times:…}"
    wish = f"--{asked} was asked for" if study.kind else f"{place} is for {asked} scaling"
    did = "stayed the same" if kind == "strong" else "grew with the size"
    return f"{wish}, but the global batch {did}: this is {kind} scaling."
