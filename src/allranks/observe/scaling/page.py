"""The study as one page: plots, table, what it says, how it was measured."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.core.formatting import one_line
from allranks.core.plots.svg import escaped
from allranks.observe.pages.html_parts import document, facts_of, table_of
from allranks.observe.scaling.analysis import Analysis
from allranks.observe.scaling.hardware import hardware
from allranks.observe.scaling.study_file import Study
from allranks.observe.scaling.study_plots import cost_plot, efficiency_plot, speedup_plot, step_plot
from allranks.observe.scaling.study_table import headline, make_table


def make_page(study: Study, found: Analysis) -> str:
    """The whole page."""
    title = f"{one_line(study.name)}: scaling over {study.axis.many}"
    return document(title, "\n".join(_body(study, found)))


def _body(study: Study, found: Analysis) -> Iterator[str]:
    first, _, rest = headline(study, found).partition(", ")
    yield f'<header><h1>{escaped(first)}</h1>\n<p class="soft">{escaped(rest)}</p></header>'
    for text in found.problems:
        yield f'<div class="advice error"><p>{escaped(text)}</p></div>'
    for text in found.sentences:
        yield f'<div class="advice note"><p>{_prose(text)}</p></div>'
    yield f'<h2>The sizes</h2>\n<div class="card">{table_of(make_table(study, found))}</div>'
    if plots := "".join(f'<div class="card">{plot}</div>\n' for plot in _plots(study, found)):
        yield f'<div class="plots">{plots}</div>'
    yield f'<h2>How it was measured</h2>\n<div class="card">{facts_of(_facts(study, found))}</div>'


def _prose(text: str) -> str:
    """Sentences name commands between backticks."""
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
    """What a reader needs to believe the numbers."""
    yield "Command", study.command
    yield "When", study.created[:16].replace("T", " ") + " UTC"
    if on := hardware(study):
        yield "On", on
    yield "Study", str(study.path)
    runs = [run.id for point in study.points if (run := study.run_of(point))]
    yield "Runs", ", ".join(runs) or "none"
    if found.unit != "runs":
        yield "Left out", "the first fifth of each run: start, compilation and caches"
