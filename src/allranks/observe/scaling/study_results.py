"""Write the results of a study: JSON for programs, an HTML page, Markdown and a plot to paste."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from allranks.core.formatting import one_line
from allranks.core.plots.svg import escaped
from allranks.errors import AllranksError
from allranks.observe.pages.documents import (
    escape_markdown,
    html_document,
    html_facts,
    html_table,
    markdown_code,
    markdown_prose,
    markdown_table,
)
from allranks.observe.scaling.conclusions import hardware
from allranks.observe.scaling.scaling_study import DONE, Study
from allranks.observe.scaling.size_results import Analysis, SizeResult
from allranks.observe.scaling.study_plots import cost_plot, efficiency_plot, speedup_plot, step_plot
from allranks.observe.scaling.study_table import headline, study_table
from allranks.runs.atomic_files import write_json, write_text

PLOT_FILE = "speedup.svg"


def render_markdown(study: Study, found: Analysis, *, picture: bool) -> str:
    """Return a heading, the table, the conclusions and how they were measured."""
    table = study_table(study, found)
    lines = [f"## {escape_markdown(headline(study, found))}", "", *markdown_table(table)]
    for text in filter(None, (table.more, *found.problems)):
        lines += ["", escape_markdown(text)]
    for text in found.conclusions:
        lines += ["", markdown_prose(text)]
    if picture:
        lines += ["", f"![speed-up over {study.axis.many}]({PLOT_FILE})"]
    return "\n".join([*lines, "", f"Measured with {markdown_code(study.command)}.", ""])


def render_page(study: Study, found: Analysis) -> str:
    """Return the whole page."""
    title = f"{one_line(study.name)}: scaling over {study.axis.many}"
    return html_document(title, "\n".join(_body(study, found)))


def _body(study: Study, found: Analysis) -> Iterator[str]:
    first, _, rest = headline(study, found).partition(", ")
    yield f'<header><h1>{escaped(first)}</h1>\n<p class="soft">{escaped(rest)}</p></header>'
    for text in found.problems:
        yield f'<div class="advice error"><p>{escaped(text)}</p></div>'
    for text in found.conclusions:
        yield f'<div class="advice note"><p>{_html_prose(text)}</p></div>'
    yield f'<h2>The sizes</h2>\n<div class="card">{html_table(study_table(study, found))}</div>'
    if plots := "".join(f'<div class="card">{plot}</div>\n' for plot in _plots(study, found)):
        yield f'<div class="plots">{plots}</div>'
    yield f'<h2>How it was measured</h2>\n<div class="card">{html_facts(_facts(study, found))}</div>'


def _html_prose(text: str) -> str:
    """Return sentences with the commands between backticks as code."""
    parts = escaped(text).split("`")
    return "".join(
        f"<code>{part}</code>" if place % 2 else part for place, part in enumerate(parts)
    )


def _plots(study: Study, found: Analysis) -> Iterator[str]:
    if any(row.speedup for row in found.rows):
        yield speedup_plot(study, found)
        yield efficiency_plot(study, found)
    if drawn := step_plot(study, found):
        yield drawn
    if any(row.cost for row in found.rows):
        yield cost_plot(study, found)


def _facts(study: Study, found: Analysis) -> Iterator[tuple[str, str]]:
    """Yield how the study was measured."""
    yield "Command", study.command
    yield "When", study.created[:16].replace("T", " ") + " UTC"
    if on := hardware(study):
        yield "On", on
    yield "Study", str(study.path)
    runs = [run.id for point in study.points if (run := study.run_of(point))]
    yield "Runs", ", ".join(runs) or "none"
    if found.unit != "runs":
        yield "Left out", "the first fifth of each run: start, compilation and caches"


JSON, PAGE, MARKDOWN = "result.json", "scaling.html", "scaling.md"


def write_results(study: Study, found: Analysis) -> None:
    """Write all results known so far; raise AllranksError when they cannot be written."""
    try:
        write_json(study.path / JSON, study_record(study, found))
        picture = any(row.speedup for row in found.rows)
        if picture:
            write_text(study.path / PLOT_FILE, speedup_plot(study, found))
        write_text(study.path / MARKDOWN, render_markdown(study, found, picture=picture))
        write_text(study.path / PAGE, render_page(study, found))
    except OSError as error:
        raise AllranksError(
            f"The results cannot be written in {study.path}: {error.strerror}."
        ) from None


def study_record(study: Study, found: Analysis) -> dict[str, Any]:
    """Return the study as JSON values, as ``--json`` prints it."""
    return {
        "study": study.id,
        "folder": str(study.path),
        "name": study.name,
        "axis": study.axis.option.removeprefix("--"),
        "where": study.where,
        "kind": found.kind,
        "unit": found.unit,
        "steps": study.steps,
        "complete": all(point.state == DONE for point in study.points),
        "points": [_size_record(study, row, found) for row in found.rows],
        "serial_share": found.fit.serial if found.fit else None,
        "law": found.fit.law if found.fit else None,
        "most_speedup": found.fit.limit if found.fit else None,
        "efficient_up_to": found.efficient_up_to,
        "problems": found.problems,
        "conclusions": found.conclusions,
    }


def _size_record(study: Study, row: SizeResult, found: Analysis) -> dict[str, Any]:
    point = row.point
    values: dict[str, Any] = {
        "size": row.size,
        "nodes": point.nodes,
        "ranks": point.ranks,
        "gpus": point.gpus,
        "cpus": point.cpus,
        "state": point.state if not row.problems or row.rate else "failed",
        "problems": list(row.problems),
        "runs": [one.run for one in study.at(row.size) if one.run],
        f"{found.unit.replace(' ', '_')}_per_second": row.rate,
        "low": row.low,
        "high": row.high,
        "speedup": row.speedup,
        "efficiency": row.efficiency,
        "gpu_hours" if found.per_gpu else "core_hours": row.cost,
        "hours": row.hours,
        "lost": row.lost,
        "unreliable": row.unreliable or None,
    }
    about = asdict(row.measurement) if row.measurement else {}
    return values | {name: about[name] for name in about if name not in ("rate", "unit")}
