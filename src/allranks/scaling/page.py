"""The study as one page without scripts or other files: plots, table, what it says, how it was measured."""

from __future__ import annotations

import html
from collections.abc import Iterator

from allranks.plots.svg import on_dark
from allranks.scaling.analysis import Analysis
from allranks.scaling.hardware import hardware
from allranks.scaling.plots import cost_plot, efficiency_plot, speedup_plot, step_plot
from allranks.scaling.states import plain
from allranks.scaling.study import Study
from allranks.scaling.table import headline, make_table

_STYLE = """
:root{color-scheme:light dark;--text:#1f2937;--soft:#6b7280;--line:#e5e7eb;--back:#fff;--mark:#f3f4f6}
@media(prefers-color-scheme:dark){:root{--text:#e5e7eb;--soft:#9ca3af;--line:#334155;--back:#0f172a;
--mark:#1e293b;DARK}}
body{font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;color:var(--text);
background:var(--back);max-width:1080px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem;margin:0}h2{font-size:1.1rem;margin:2rem 0 .5rem}.soft{color:var(--soft);margin:.25rem 0 1rem}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(440px,1fr));gap:1rem;margin:1rem 0}
.plots svg{width:100%;height:auto;border:1px solid var(--line);border-radius:8px}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:.4rem .7rem;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}
th{color:var(--soft);font-weight:600}td.why{text-align:left;white-space:normal;color:var(--soft)}
.facts th,.facts td{text-align:left;white-space:normal}.facts th{width:11rem}
ul{padding-left:1.2rem}li{margin:.3rem 0}.bad{background:var(--mark);border-left:4px solid #d55e00;padding:.6rem 1rem}
code{background:var(--mark);padding:.1rem .3rem;border-radius:4px;overflow-wrap:anywhere}
@media(max-width:520px){.plots{grid-template-columns:1fr}}@media print{body{max-width:none;margin:0}}
"""


def make_page(study: Study, found: Analysis) -> str:
    """The whole page."""
    title = html.escape(f"{study.name}: scaling over {study.axis.many}")
    style = _STYLE.replace("DARK", on_dark()).strip()
    head = (
        f'<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{title}</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{style}</style></head>\n<body>"
    )
    return "\n".join([head, *_body(study, found), "</body>\n</html>\n"])


def _body(study: Study, found: Analysis) -> Iterator[str]:
    first, _, rest = headline(study, found).partition(", ")
    yield f"<h1>{html.escape(first)}</h1>"
    yield f'<p class="soft">{html.escape(rest)}</p>'
    for text in found.problems:
        yield f'<p class="bad">{html.escape(text)}</p>'
    if found.sentences:
        yield "<ul>" + "".join(f"<li>{_prose(text)}</li>" for text in found.sentences) + "</ul>"
    yield from _table(study, found)
    yield '<div class="plots">' + "\n".join(_plots(study, found)) + "</div>"
    yield from _facts(study)


def _prose(text: str) -> str:
    """Sentences name commands between backticks."""
    parts = html.escape(text).split("`")
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


def _table(study: Study, found: Analysis) -> Iterator[str]:
    table = make_table(study, found)
    yield '<div class="scroll"><table><tr>'
    yield "".join(f"<th>{html.escape(title)}</th>" for title in table.titles) + "</tr>"
    for cells, text in zip(table.cells, table.texts, strict=True):
        if text:
            width = len(cells) - 1
            why = f'<td class="why" colspan="{width}">{html.escape(plain(text))}</td>'
            yield f"<tr><td>{html.escape(cells[0])}</td>{why}</tr>"
        else:
            yield "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>"
    yield "</table></div>"
    for note in table.notes:
        yield f'<p class="soft">{html.escape(note)}</p>'


def _facts(study: Study) -> Iterator[str]:
    yield '<h2>How it was measured</h2><table class="facts">'
    for name, value in facts(study):
        yield f"<tr><th>{html.escape(name)}</th><td>{value}</td></tr>"
    yield "</table>"


def facts(study: Study) -> Iterator[tuple[str, str]]:
    """What a reader needs to believe the numbers, as pieces of HTML."""
    yield "Command", f"<code>{html.escape(plain(study.command))}</code>"
    yield "When", html.escape(study.created[:16].replace("T", " ") + " UTC")
    if on := hardware(study):
        yield "On", html.escape(plain(on))
    yield "Study", f"<code>{html.escape(str(study.path))}</code>"
    runs = [html.escape(run.id) for point in study.points if (run := study.run_of(point))]
    yield "Runs", ", ".join(f"<code>{run}</code>" for run in runs) or "none"
    yield "Left out", "the first fifth of each run: start, compilation and caches"
