"""The study as a table: the same cells for the terminal, for Markdown and for the page."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from allranks.scaling.analysis import Analysis, Row
from allranks.scaling.losses import biggest
from allranks.scaling.states import plain, progress_text
from allranks.scaling.study import RUNNING, Study
from allranks.wording import percent, step_time

WIDTH = 80
LOST = "most lost to"


@dataclass(frozen=True)
class Table:
    """Titles, one list of cells for each size, and the rows that have a text in place of numbers."""

    titles: list[str]
    cells: list[list[str]]
    texts: list[str]
    """For each row: empty, or why it has no numbers."""
    notes: list[str]
    """What the titles mean."""


@dataclass(frozen=True)
class _Column:
    title: str
    cell: Callable[[Row], str]
    needed: bool = False
    """Shown also when no row has a value."""


def make_table(study: Study, found: Analysis) -> Table:
    """The cells; a column that no row has a value for is left out."""
    columns = _columns(study, found)
    rows = found.rows
    filled = [one for one in columns if one.needed or any(map(one.cell, rows))]
    return Table(
        titles=[one.title for one in filled],
        cells=[[one.cell(row) for one in filled] for row in rows],
        texts=["" if row.rate else _state(study, row) for row in rows],
        notes=_notes(study, found),
    )


def terminal_table(study: Study, found: Analysis, width: int = WIDTH) -> str:
    """The head, the table, what it says, and what went wrong."""
    table = make_table(study, found)
    lines = [*textwrap.wrap(headline(study, found), width), "", *_aligned(table, width)]
    for text in (*table.notes, *found.problems, *found.sentences):
        lines += ["", *textwrap.wrap(text, width, break_on_hyphens=False)]
    return "\n".join(lines)


def headline(study: Study, found: Analysis) -> str:
    """``train: strong scaling over nodes, global batch 256, 100 steps, 3 times each``."""
    kind = {"strong": "strong scaling", "weak": "weak scaling"}.get(found.kind or "", "scaling")
    parts = [f"{plain(study.name)}: {kind} over {study.axis.many}"]
    per_node = {row.point.ranks // row.size for row in found.rows if row.point.ranks}
    if study.axis.field == "nodes" and len(per_node) == 1 and per_node != {1}:
        parts.append(f"{per_node.pop()} ranks on each")
    batches = [row.measure.batch for row in found.rows if row.measure and row.measure.batch]
    if batches and found.kind == "strong":
        parts.append(f"global batch {batches[0]:g}")
    if batches and found.kind == "weak":
        first = next(row for row in found.rows if row.measure and row.measure.batch)
        parts.append(f"batch {batches[0] / max(first.point.ranks, 1):g} per rank")
    if any(row.measure and row.measure.source == "metrics.jsonl" for row in found.rows):
        parts.append(f"{study.steps} steps")
    if study.repeats > 1:
        parts.append(f"{study.repeats} times each")
    return ", ".join(parts)


# -- columns


def _columns(study: Study, found: Analysis) -> list[_Column]:
    seconds = found.unit == "runs"
    hours = "GPU-h" if found.per_gpu else "core-h"
    per = "" if study.samples or seconds else "/1M"
    return [
        _Column(study.axis.short, lambda row: f"{row.size}{'*' if row.shared else ''}", True),
        _Column("ranks", lambda row: _ranks(study, row)),
        _Column("batch", _batch),
        _Column("time", _wall) if seconds else _Column(f"{found.unit}/s", _rate, True),
        _Column("±", _spread),
        _Column("step", _step),
        _Column("speed-up", lambda row: _fixed(row.speedup), True),
        _Column("efficiency", lambda row: _fixed(row.efficiency), True),
        _Column(f"{hours}{per}", lambda row: significant(row.cost)),
        _Column("hours", lambda row: significant(row.hours) if study.samples else ""),
        _Column("GPU use", lambda row: percent(row.measure.gpu_use if row.measure else None)),
        _Column("MFU", lambda row: percent(row.measure.mfu if row.measure else None)),
        _Column(LOST, _lost),
    ]


def _ranks(study: Study, row: Row) -> str:
    return "" if study.axis.field == "nprocs" or not row.point.ranks else str(row.point.ranks)


def _batch(row: Row) -> str:
    return f"{row.measure.batch:g}" if row.measure and row.measure.batch else ""


def _rate(row: Row) -> str:
    return significant(row.rate)


def _wall(row: Row) -> str:
    return step_time(1 / row.rate) if row.rate else ""


def _spread(row: Row) -> str:
    return f"{row.spread * 100:.1f} %" if row.spread else ""


def _step(row: Row) -> str:
    return step_time(row.measure.step_seconds) if row.measure else ""


def _lost(row: Row) -> str:
    found = biggest(row.lost)
    return f"{found[0]} {percent(found[1])}" if found else ""


def _notes(study: Study, found: Analysis) -> list[str]:
    what = "GPU-hours" if found.per_gpu else "core-hours"
    if not any(row.cost for row in found.rows):
        return []
    spread = any(map(_spread, found.rows))
    half = "  ±: half of the way from the slowest to the fastest time." if spread else ""
    if found.unit == "runs":
        return [half.strip()] if half else []
    many = f"{study.samples:,}" if study.samples else "a million"
    short = "GPU-h" if found.per_gpu else "core-h"
    per = "" if study.samples else "/1M"
    return [f"{short}{per}: {what} for {many} {found.unit}.{half}"]


def _state(study: Study, row: Row) -> str:
    point = row.point
    if row.problems:
        return f"failed: {plain(row.problems[0])}"
    why = plain(point.why) or (progress_text(study.run_of(point)) if point.state == RUNNING else "")
    return f"{point.state}: {why}" if why else point.state


# -- numbers as people read them


def significant(value: float | None) -> str:
    """Three or four digits that matter, thousands apart: ``0.0123``, ``12.3``, ``1,234``."""
    if value is None:
        return ""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:#.3g}".rstrip(".") if abs(value) >= 1e-4 else f"{value:.1e}"


def _fixed(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


# -- the terminal


def _aligned(table: Table, width: int) -> list[str]:
    """Columns to the right, the last one to the left; reasons below the numbers' width."""
    titles, cells = _fitting(table, width)
    widths = [max(map(len, column)) for column in zip(titles, *cells, strict=True)]
    if titles[-1] == LOST:  # words, not numbers
        for row in [titles, *cells]:
            row[-1] = row[-1].ljust(widths[-1])
    lines = [_line(titles, widths)]
    for row, text in zip(cells, table.texts, strict=True):
        if not text:
            lines.append(_line(row, widths))
            continue
        indent = widths[0] + 2
        wrapped = textwrap.wrap(text, max(width - indent, 12), max_lines=4, placeholder=" …") or [
            ""
        ]
        lines.append(f"{row[0]:>{widths[0]}}  {wrapped[0]}")
        lines += [" " * indent + more for more in wrapped[1:]]
    return lines


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [cell.rjust(size) for cell, size in zip(cells, widths, strict=True)]
    return "  ".join(padded).rstrip()


_DROPPED = ("MFU", "GPU use", "batch", "hours", "ranks", "step", "±", LOST)
"""What goes first where there is no room for all; the page has everything."""


def _fitting(table: Table, width: int) -> tuple[list[str], list[list[str]]]:
    titles, cells = list(table.titles), [list(row) for row in table.cells]
    for name in _DROPPED:
        columns = zip(titles, *cells, strict=True)
        if sum(max(map(len, column)) + 2 for column in columns) - 2 <= width:
            break
        if name in titles:
            place = titles.index(name)
            for row in [titles, *cells]:
                del row[place]
    return titles, cells
