"""The table of a study: the same cells for the terminal, Markdown and the HTML page."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from allranks.core.formatting import one_line, percent, span, step_time
from allranks.observe.pages.documents import TextTable
from allranks.observe.scaling.point_states import progress_text
from allranks.observe.scaling.scaling_study import RUNNING, Study
from allranks.observe.scaling.size_results import Analysis, SizeResult, largest_loss

WIDTH, WIDEST = 80, 100
"""Columns of the table: in a file, and at most on a terminal."""
LOST = "most lost to"


@dataclass(frozen=True)
class _Column:
    title: str
    cell: Callable[[SizeResult], str]
    needed: bool = False
    """Shown also when no row has a value."""


def study_table(study: Study, found: Analysis) -> TextTable:
    """Return the cells; a column without any value is left out."""
    columns = [
        one for one in _columns(study, found) if one.needed or any(map(one.cell, found.rows))
    ]
    titles = [one.title for one in columns]
    return TextTable(
        titles,
        [_cells(study, row, columns) for row in found.rows],
        frozenset(n for n, title in enumerate(titles) if title != LOST),
        more=_notes(study, found),
    )


def _cells(study: Study, row: SizeResult, columns: Sequence[_Column]) -> list[str]:
    """Return the numbers of a size, or why it has none."""
    if not row.rate:
        return [columns[0].cell(row), _state_text(study, row)]
    return [one.cell(row) for one in columns]


def terminal_table(study: Study, found: Analysis, width: int = WIDTH) -> str:
    """Return the headline, the table, the conclusions and the problems."""
    table = study_table(study, found)
    lines = [*textwrap.wrap(headline(study, found), width), "", *_align(table, width)]
    for text in (table.more, *found.problems, *found.conclusions):
        lines += ["", *textwrap.wrap(text, width, break_on_hyphens=False)] if text else []
    return "\n".join(lines)


def headline(study: Study, found: Analysis) -> str:
    """Return ``train: strong scaling over nodes, global batch 256, 100 steps, 3 times each``."""
    kind = {"strong": "strong scaling", "weak": "weak scaling"}.get(found.kind or "", "scaling")
    parts = [f"{one_line(study.name)}: {kind} over {study.axis.many}"]
    per_node = {row.point.ranks // row.size for row in found.rows if row.point.ranks}
    if study.axis.field == "nodes" and len(per_node) == 1 and per_node != {1}:
        parts.append(f"{per_node.pop()} ranks on each")
    batches = [
        row.measurement.batch for row in found.rows if row.measurement and row.measurement.batch
    ]
    if batches and found.kind == "strong":
        parts.append(f"global batch {batches[0]:g}")
    if batches and found.kind == "weak":
        first = next(row for row in found.rows if row.measurement and row.measurement.batch)
        parts.append(f"batch {batches[0] / max(first.point.ranks, 1):g} per rank")
    if any(row.measurement and row.measurement.source == "metrics.jsonl" for row in found.rows):
        parts.append(f"{study.steps} steps")
    if study.repeats > 1:
        parts.append(f"{study.repeats} times each")
    return ", ".join(parts)


# -- columns


def _columns(study: Study, found: Analysis) -> list[_Column]:
    wall = found.unit == "runs"
    return [
        _Column(study.axis.short, lambda row: f"{row.size}{'*' if row.unreliable else ''}", True),
        _Column("ranks", lambda row: _ranks(study, row)),
        _Column("batch", _batch),
        _Column("time", _wall) if wall else _Column(f"{found.unit}/s", _rate, True),
        _Column("±", _spread),
        _Column("step", _step),
        _Column("speed-up", lambda row: _fixed(row.speedup), True),
        _Column("efficiency", lambda row: _fixed(row.efficiency), True),
        _Column(cost_titles(study, found)[0], lambda row: format_significant(row.cost)),
        _Column("hours", lambda row: format_significant(row.hours) if study.samples else ""),
        _Column(
            "GPU use", lambda row: percent(row.measurement.gpu_use if row.measurement else None)
        ),
        _Column("MFU", lambda row: percent(row.measurement.mfu if row.measurement else None)),
        _Column(LOST, _lost),
    ]


def _ranks(study: Study, row: SizeResult) -> str:
    return "" if study.axis.field == "nprocs" or not row.point.ranks else str(row.point.ranks)


def _batch(row: SizeResult) -> str:
    return f"{row.measurement.batch:g}" if row.measurement and row.measurement.batch else ""


def _rate(row: SizeResult) -> str:
    return format_significant(row.rate)


def _wall(row: SizeResult) -> str:
    return format_wall_time(1 / row.rate) if row.rate else ""


def _spread(row: SizeResult) -> str:
    return f"{row.spread * 100:.1f} %" if row.spread else ""


def _step(row: SizeResult) -> str:
    return step_time(row.measurement.step_seconds) if row.measurement else ""


def _lost(row: SizeResult) -> str:
    found = largest_loss(row.lost)
    return f"{found[0]} {percent(found[1])}" if found else ""


def cost_titles(study: Study, found: Analysis) -> tuple[str, str]:
    """Return the cost as a title and in full: ``GPU-h/1M``, ``GPU-hours for a million samples``."""
    what, wall = "GPU" if found.per_gpu else "core", found.unit == "runs"
    per = "" if study.samples or wall else "/1M"
    many = f"{study.samples:,}" if study.samples else "a million"
    return f"{what}-h{per}", f"{what}-hours for {'a run' if wall else f'{many} {found.unit}'}"


def _notes(study: Study, found: Analysis) -> str:
    """Explain the titles."""
    notes = []
    if any(row.cost for row in found.rows) and found.unit != "runs":
        notes.append("{}: {}.".format(*cost_titles(study, found)))
    if any(map(_spread, found.rows)):
        notes.append("±: half of the way from the slowest to the fastest time.")
    return "  ".join(notes)


def _state_text(study: Study, row: SizeResult) -> str:
    point = row.point
    if row.problems:
        return f"failed: {one_line(row.problems[0])}"
    why = one_line(point.why) or (
        progress_text(study.run_of(point)) if point.state == RUNNING else ""
    )
    return f"{point.state}: {why}" if why else point.state


# -- numbers as people read them


def format_significant(value: float | None) -> str:
    """Format three or four significant digits: ``0.0123``, ``12.3``, ``1,234``."""
    if value is None:
        return ""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:#.3g}".rstrip(".") if abs(value) >= 1e-4 else f"{value:.1e}"


def format_wall_time(seconds: float) -> str:
    """Format the time of a whole run: ``1.42 s``, ``12 min``, ``2 h 05 min``."""
    return step_time(seconds) if seconds < 99.95 else span(seconds)


def _fixed(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


# -- the terminal


def _align(table: TextTable, width: int) -> list[str]:
    """Align columns to the right, the last one to the left; reasons wrap within the table's width."""
    titles, rows = _drop_columns(table, width)
    full = [titles, *(row for row in rows if len(row) == len(titles))]
    widths = [max(map(len, column)) for column in zip(*full, strict=True)]
    widths[0] = max(len(row[0]) for row in (titles, *rows))
    if titles[-1] == LOST:  # words, not numbers
        for row in full:
            row[-1] = row[-1].ljust(widths[-1])
    lines = [_line(titles, widths)]
    for row in rows:
        whole = len(row) == len(titles)
        lines += [_line(row, widths)] if whole else _reason(row[0], row[1], widths[0], width)
    return lines


def _reason(size: str, text: str, indent: int, width: int) -> list[str]:
    room = max(width - indent - 2, 12)
    wrapped = textwrap.wrap(text, room, max_lines=4, placeholder=" …") or [""]
    return [f"{size if n == 0 else '':>{indent}}  {line}" for n, line in enumerate(wrapped)]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [cell.rjust(size) for cell, size in zip(cells, widths, strict=True)]
    return "  ".join(padded).rstrip()


_DROPPED = ("MFU", "GPU use", "batch", "hours", "ranks", "step", "±", LOST)
"""Columns in the order in which they are dropped where they do not fit; the page has all."""


def _drop_columns(table: TextTable, width: int) -> tuple[list[str], list[list[str]]]:
    """Return titles and rows without the columns that do not fit; short rows are texts."""
    titles, rows = list(table.titles), [list(row) for row in table.rows]
    full = [titles, *(row for row in rows if len(row) == len(titles))]
    for name in _DROPPED:
        if sum(max(map(len, column)) + 2 for column in zip(*full, strict=True)) - 2 <= width:
            break
        if name in titles:
            place = titles.index(name)
            for row in full:
                del row[place]
    return titles, rows
