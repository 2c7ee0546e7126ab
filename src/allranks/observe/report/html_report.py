"""The report as one HTML page that needs no script, no other file and no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from allranks._version import __version__
from allranks.core.formatting import amount, percent, step_time, value
from allranks.core.plots.svg import COLOURS, escaped
from allranks.observe.pages.documents import TextTable, html_document, html_facts, html_table
from allranks.observe.report import report_tables as tables
from allranks.observe.report import report_tables as uses
from allranks.observe.report import verdict as summary
from allranks.observe.report.advice import Advice
from allranks.observe.report.model import RunFacts
from allranks.observe.report.report_plots import ReportPlot
from allranks.observe.report.report_tables import ResourceUse, format_moment
from allranks.observe.report.verdict import (
    EXACT_TITLE,
    Tile,
    array_summary,
    suggested_changes,
    verdict,
)

WORDS = {"error": "This went wrong", "warning": "Worth changing", "note": "Worth a try"}
_WIDE = ("heat-gpu", "heat-wait")
_LONGEST = 12_000
"""Letters of a traceback."""


def html_report(
    facts: RunFacts, advice: Sequence[Advice], pictures: Sequence[ReportPlot] = ()
) -> str:
    """Return the whole page."""
    sections = [
        _head(facts, advice),
        _advice(suggested_changes(advice)),
        _error(facts),
        _use(facts),
        _plots(pictures),
        _attempts(facts),
        _gpus(facts),
        _findings(facts),
        _details(facts),
        _foot(facts),
    ]
    body = "\n".join(section for section in sections if section)
    return html_document(f"{facts.id}: report", body)


def _head(facts: RunFacts, advice: Sequence[Advice]) -> str:
    tiles = summary.tiles(facts)
    state = f'<span class="badge {tiles[0].mood}">{escaped(facts.state)}</span>'
    known = [
        facts.id if facts.id != facts.name else "",
        f"job {', '.join(facts.job_ids[-4:])}" if facts.job_ids and facts.kind == "run" else "",
        f"of {facts.user}" if facts.user else "",
        f"began {format_moment(facts.start)}" if facts.start else "",
    ]
    line = escaped(" · ".join(each for each in known if each))
    more = "".join(
        f'<p class="soft">{escaped(each)}</p>' for each in (array_summary(facts), facts.why) if each
    )
    return (
        f'<header><h1>{escaped(facts.name)}{state}</h1>\n<p class="soft">{line}</p>{more}\n'
        f'<p class="verdict">{escaped(verdict(facts, advice))}</p></header>\n'
        f'<div class="tiles">{"".join(map(_tile, tiles))}</div>'
    )


def _tile(tile: Tile) -> str:
    about = f"<span>{escaped(tile.about)}</span>" if tile.about else ""
    return (
        f'<div class="tile {tile.mood}"><span>{escaped(tile.title)}</span>'
        f"<b>{escaped(tile.value)}</b>{about}</div>\n"
    )


def _advice(advice: Sequence[Advice]) -> str:
    if not advice:
        return ""
    return '<h2 id="advice">What to change</h2>\n' + "".join(
        f'<div class="advice {each.severity}" id="advice-{escaped(each.id)}">'
        f"<b>{WORDS[each.severity]}</b><p>{escaped(each.text)}</p>"
        + (f"<p><code>{escaped(each.command)}</code></p>" if each.command else "")
        + "</div>\n"
        for each in advice
    )


def _error(facts: RunFacts) -> str:
    error = facts.error
    if error is None or not error.traceback:
        return ""
    where = f" on {error.host}" if error.host else ""
    text = error.traceback[-_LONGEST:]
    return (
        f'<h2>The first error</h2>\n<div class="card"><p>Rank {error.rank}{escaped(where)}:</p>'
        f"<pre>{escaped(text)}</pre></div>"
    )


def _use(facts: RunFacts) -> str:
    bars = "".join(map(_bar, uses.resource_uses(facts)))
    asked = html_facts(tables.request_rows(facts))
    used = bars or '<p class="soft">Unknown.</p>'
    return (
        f'<h2>{uses.request_title(facts)} and used</h2>\n<div class="two">'
        f'<div><div class="card">{used}</div>{_step(facts)}</div>'
        f'<div class="card">{asked}</div></div>'
    )


def _bar(use: ResourceUse) -> str:
    share = min(use.share, 1.0) if use.share is not None else 0.0
    about = f"<small>{escaped(use.about)}</small>" if use.about else ""
    return (
        f'<div class="use"><span>{escaped(use.title)}</span>'
        f'<div class="bar" role="img" aria-label="{escaped(use.used)} of {escaped(use.requested)}">'
        f'<i style="width:{share * 100:.1f}%"></i></div>'
        f"<span><b>{escaped(use.used)}</b> of {escaped(use.requested)}{about}</span></div>\n"
    )


def _step(facts: RunFacts) -> str:
    whole = facts.step_seconds
    if whole <= 0:
        return ""
    parts = [(name, spent, place) for place, (name, spent) in enumerate(facts.phases.items())]
    blocks = "".join(
        f'<i style="width:{spent / whole * 100:.2f}%;background:{_colour(place)}" '
        f'title="{escaped(name)} {percent(spent / whole)}"></i>'
        for name, spent, place in parts
    )
    keys = "".join(
        f'<span><i style="background:{_colour(place)}"></i>{escaped(name)} '
        f"<b>{percent(spent / whole)}</b> {step_time(spent)}</span>"
        for name, spent, place in parts
        if spent
    )
    return (
        f'<div class="card"><h3>A step: {step_time(whole)}</h3><div class="stack" role="img" '
        f'aria-label="What a step is made of">{blocks}</div><div class="keys">{keys}</div></div>'
    )


def _colour(place: int) -> str:
    index = place % len(COLOURS)
    return f"var(--plot-{index + 1},{COLOURS[index]})"


def _plots(pictures: Sequence[ReportPlot]) -> str:
    if not pictures:
        return ""
    cards = "".join(
        f'<div class="card{" wide" if each.id in _WIDE else ""}" id="plot-{each.id}">{each.svg}</div>\n'
        for each in pictures
    )
    return f'<h2>Over time</h2>\n<div class="plots">{cards}</div>'


def _attempts(facts: RunFacts) -> str:
    if not facts.attempts:
        return ""
    good = ""
    if facts.goodput is not None and len(facts.attempts) > 1:
        good = f"<p>Goodput {percent(facts.goodput)}: the share of the allocated time that moved the model forward.</p>"
    return f'<h2>Attempts</h2>\n<div class="card">{good}{html_table(tables.attempt_table(facts))}</div>'


def _gpus(facts: RunFacts) -> str:
    if not any(gpu.name or gpu.memory for gpu in facts.used.gpus):
        return ""
    table = tables.gpu_table(facts)
    return _folded(f"GPUs ({len(facts.used.gpus)})", html_table(table), len(table.rows) <= 8)


def _findings(facts: RunFacts) -> str:
    if not facts.findings:
        return ""
    rows = "".join(
        f'<div class="advice {escaped(each.severity)}"><b>{escaped(each.severity)}'
        f"{f' {escaped(each.rule)}' if each.rule else ''}</b><p>{escaped(each.message or each.title)}</p>"
        f"{f'<p><code>{escaped(each.help)}</code></p>' if each.help else ''}</div>\n"
        for each in facts.findings
    )
    return f"<h2>What lint and check found</h2>\n{rows}"


def _details(facts: RunFacts) -> str:
    parts = []
    if ways := [way for way in (facts.original_command, facts.exact_command) if way]:
        blocks = [f"<pre>{escaped(chr(10).join(way))}</pre>" for way in ways]
        parts.append(f"<h2>To run it again</h2>\n{f'<p>{EXACT_TITLE}</p>'.join(blocks)}")
    plan = TextTable(("Value", "", "Where it came from"), [list(row) for row in facts.plan_values])
    sections = [
        ("Versions", html_facts(facts.versions.items())),
        ("The Trainer's settings", html_facts(facts.settings.items())),
        ("The last values", html_facts(_figures(facts.values))),
        ("Environment", html_facts(facts.environment.items())),
        ("The plan", html_table(plan) if plan.rows else ""),
    ]
    parts += [_folded(title, body, title == "Versions") for title, body in sections if body]
    return "\n".join(parts)


def _figures(values: Mapping[str, float]) -> list[tuple[str, str]]:
    return [
        (name, amount(each) if abs(each) >= 10_000 else value(each))
        for name, each in values.items()
    ]


def _folded(title: str, body: str, open_: bool) -> str:
    state = " open" if open_ else ""
    return f'<div class="card"><details{state}><summary>{escaped(title)}</summary>{body}</details></div>'


def _foot(facts: RunFacts) -> str:
    remarks = "".join(f"<p>{escaped(each)}</p>" for each in facts.limitations)
    made = f"Made by allranks {escaped(__version__)}, {format_moment(facts.time)}."
    return f"<footer>{remarks}<p>{made}</p></footer>"
