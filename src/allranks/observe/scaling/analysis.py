"""Analyse a study: speed-up, efficiency, cost, kind of scaling and the largest efficient size."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

from allranks.errors import AllranksError
from allranks.observe.scaling.conclusions import (
    SHARED,
    draw_conclusions,
    is_efficient,
    unreliable_reason,
)
from allranks.observe.scaling.measurement import Measurement, measure_run
from allranks.observe.scaling.scaling_study import DONE, FAILED, Point, Study
from allranks.observe.scaling.size_results import (
    Analysis,
    SizeResult,
    fit_law,
    loss_shares,
    lost_time,
)

_SAME_BATCH = 0.1
"""Batches that differ by less are the same: the last one of an epoch may be short."""
MILLION = 1_000_000
_UNKNOWN_KIND = (
    "Only times were measured, and it is unknown whether the work was the same at every size, so they "
    "cannot be compared. Measure with --strong (it was), or with --weak (it grew with the ranks) and "
    "a --metric."
)
MeasuredRuns = dict[str, Measurement]
"""What points achieved by their run folders: read once, for those who look again and again."""


def analyse(study: Study, known: MeasuredRuns | None = None) -> Analysis:
    """Analyse a study as far as it is; measurements are added to ``known``."""
    rows = [_row(study, size, {} if known is None else known) for size in study.sizes]
    kind, problems = _kind(study, rows)
    if kind != "mixed":
        rows = _compare_sizes(rows, kind)
    rows = [_add_cost(study, row) for row in rows]
    trusted = _reliable_rows(rows)
    fit = None
    if kind in ("strong", "weak") and trusted:
        base = trusted[0].size
        fit = fit_law(kind, [r.size / base for r in trusted], [r.speedup or 0 for r in trusted])
    paying = [row.size for row in takewhile(is_efficient, trusted)]
    found = Analysis(rows, kind, fit, max(paying, default=None), problems=problems)
    return replace(found, conclusions=draw_conclusions(study, found, trusted))


# -- rows


def _row(study: Study, size: int, known: MeasuredRuns) -> SizeResult:
    points = study.at(size)
    found: list[tuple[Measurement, Point]] = []
    problems = [_problem(point) for point in points if point.state == FAILED]
    for point in (point for point in points if point.state == DONE):
        try:
            found.append((measure_point(study, point, known), point))
        except AllranksError as error:
            problems.append(str(error))
    row = SizeResult(
        size, points[0], unreliable=unreliable_reason(study, points[0]), problems=tuple(problems)
    )
    if not found:
        open_ = [point for point in points if point.state not in (DONE, FAILED)]
        return replace(row, point=(open_ or points)[0])
    found.sort(key=lambda pair: pair[0].rate)
    middle, point = found[(len(found) - 1) // 2]
    rates = [one.rate for one, _ in found]
    rate = statistics.median(rates)
    row = replace(
        row, point=point, measurement=middle, unreliable=unreliable_reason(study, point, middle)
    )
    return replace(row, rate=rate, low=min(rates), high=max(rates))


def measure_point(study: Study, point: Point, known: MeasuredRuns) -> Measurement:
    """Return the measurement of a point, read unless known; raise AllranksError when there is none."""
    if point.run not in known:
        run = study.run_of(point)
        if run is None:
            raise AllranksError(f"its run folder {point.run} is gone.")
        weak = study.asked_kind == "weak"
        known[point.run] = measure_run(run, metric=study.metric, weak=weak, ranks=point.ranks)
    return known[point.run]


def _problem(point: Point) -> str:
    return point.why or "it failed"


def _reliable_rows(rows: Sequence[SizeResult]) -> list[SizeResult]:
    """Return the rows that can be compared; none where the smallest, their reference, is unreliable."""
    compared = [row for row in rows if row.speedup and row.efficiency]
    return [row for row in compared if not row.unreliable and not compared[0].unreliable]


def _compare_sizes(rows: Sequence[SizeResult], kind: str | None) -> list[SizeResult]:
    """Compare every row with the smallest that was measured."""
    first = next((row for row in rows if row.rate), None)
    return [_compare_with(first, row, kind) if first else row for row in rows]


def _compare_with(first: SizeResult, row: SizeResult, kind: str | None) -> SizeResult:
    if not row.rate or not first.rate or row.measurement is None or first.measurement is None:
        return row
    growth = row.size / first.size
    speedup = row.rate / first.rate
    shrink = 1 / growth if kind == "strong" else 1.0
    lost = (
        lost_time(first.measurement, row.measurement, shrink) if kind and row is not first else {}
    )
    return replace(
        row,
        speedup=speedup,
        efficiency=speedup / growth,
        lost=loss_shares(lost, row.measurement.step_seconds),
    )


def _add_cost(study: Study, row: SizeResult) -> SizeResult:
    if not row.rate or row.measurement is None:
        return row
    units = 1 if row.measurement.unit == "runs" else study.samples or MILLION
    hours = units / row.rate / 3600
    cores = study.machine_cpus if row.unreliable == SHARED else row.point.cpus
    return replace(row, hours=hours, cost=hours * (row.point.gpus or cores or 1))


# -- the kind


def _kind(study: Study, rows: Sequence[SizeResult]) -> tuple[str | None, list[str]]:
    """Return the kind by the measured batches, or as requested where they are unknown, and its problems."""
    asked = study.asked_kind
    known = [
        (row, row.measurement.batch) for row in rows if row.measurement and row.measurement.batch
    ]
    if len(known) < 2:
        unsaid = asked is None and any(row.measurement and row.measurement.timed for row in rows)
        return ("mixed", [_UNKNOWN_KIND]) if unsaid else (asked, [])
    first, batch = known[0]
    same = all(_is_same_batch(one, batch) for _, one in known)
    grows = all(_is_same_batch(one, batch * row.size / first.size) for row, one in known)
    if same or grows:
        kind = "strong" if same else "weak"
        note = _kind_mismatch(study, asked, kind) if asked and asked != kind else ""
        return kind, [note] if note else []
    listed = ", ".join(f"{one:g} at {study.axis.count(row.size)}" for row, one in known)
    return "mixed", [
        f"The global batch was {listed}: it neither stayed the same (strong scaling) nor grew with "
        "the size (weak scaling), so the speeds cannot be compared."
    ]


def _is_same_batch(one: float, other: float) -> bool:
    return abs(one - other) <= _SAME_BATCH * other


def _kind_mismatch(study: Study, asked: str, kind: str) -> str:
    place = "{share:…}" if asked == "strong" else "{times:…}"
    wish = f"--{asked} was requested" if study.kind else f"{place} is for {asked} scaling"
    did = "stayed the same" if kind == "strong" else "grew with the size"
    return f"{wish}, but the global batch {did}: this is {kind} scaling."
