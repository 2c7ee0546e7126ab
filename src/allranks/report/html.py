"""The report as one page that needs nothing else: no script, no other file, no network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from allranks._version import __version__
from allranks.plots.svg import COLOURS, clean
from allranks.report import summary, tables
from allranks.report.advice import Advice
from allranks.report.model import Facts
from allranks.report.pictures import Picture
from allranks.report.style import css
from allranks.report.summary import Tile, Use, changes, verdict
from allranks.report.tables import Table, when
from allranks.wording import amount, percent, step_time, value

WORDS = {"error": "This went wrong", "warning": "Worth changing", "note": "Worth a try"}
_WIDE = ("heat-gpu", "heat-wait")
_LONGEST = 12_000
"""Letters of a traceback."""


def page(facts: Facts, advice: Sequence[Advice], pictures: Sequence[Picture] = ()) -> str:
    """The whole document."""
    sections = [
        _head(facts, advice),
        _advice(changes(advice)),
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
    title = clean(f"{facts.id}: report")
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>\n{css()}\n</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n"
        "</body>\n</html>\n"
    )


def _head(facts: Facts, advice: Sequence[Advice]) -> str:
    tiles = summary.tiles(facts)
    state = f'<span class="badge {tiles[0].mood}">{clean(facts.state)}</span>'
    known = [
        facts.id if facts.id != facts.name else "",
        f"job {', '.join(facts.job_ids[-4:])}" if facts.job_ids and facts.kind == "run" else "",
        f"of {facts.user}" if facts.user else "",
        when(facts.start),
    ]
    line = clean(" · ".join(each for each in known if each))
    why = f'<p class="soft">{clean(facts.why)}</p>' if facts.why else ""
    return (
        f'<header><h1>{clean(facts.name)}{state}</h1>\n<p class="soft">{line}</p>{why}\n'
        f'<p class="verdict">{clean(verdict(facts, advice))}</p></header>\n'
        f'<div class="tiles">{"".join(map(_tile, tiles))}</div>'
    )


def _tile(tile: Tile) -> str:
    about = f"<span>{clean(tile.about)}</span>" if tile.about else ""
    return (
        f'<div class="tile {tile.mood}"><span>{clean(tile.title)}</span>'
        f"<b>{clean(tile.value)}</b>{about}</div>\n"
    )


def _advice(advice: Sequence[Advice]) -> str:
    if not advice:
        return ""
    return '<h2 id="advice">What to change</h2>\n' + "".join(
        f'<div class="advice {each.severity}" id="advice-{clean(each.id)}">'
        f"<b>{WORDS[each.severity]}</b><p>{clean(each.text)}</p>"
        + (f"<p><code>{clean(each.command)}</code></p>" if each.command else "")
        + "</div>\n"
        for each in advice
    )


def _error(facts: Facts) -> str:
    error = facts.error
    if error is None or not error.traceback:
        return ""
    where = f" on {error.host}" if error.host else ""
    text = error.traceback[-_LONGEST:]
    return (
        f'<h2>The first error</h2>\n<div class="card"><p>Rank {error.rank}{clean(where)}:</p>'
        f"<pre>{clean(text)}</pre></div>"
    )


def _use(facts: Facts) -> str:
    bars = "".join(map(_bar, summary.uses(facts)))
    asked = _facts_table(tables.request(facts))
    used = bars or '<p class="soft">Not known.</p>'
    return (
        '<h2>Asked for and used</h2>\n<div class="two">'
        f'<div><div class="card">{used}</div>{_step(facts)}</div>'
        f'<div class="card">{asked}</div></div>'
    )


def _bar(use: Use) -> str:
    share = min(use.share, 1.0) if use.share is not None else 0.0
    about = f"<small>{clean(use.about)}</small>" if use.about else ""
    return (
        f'<div class="use"><span>{clean(use.title)}</span>'
        f'<div class="bar" role="img" aria-label="{clean(use.used)} of {clean(use.asked)}">'
        f'<i style="width:{share * 100:.1f}%"></i></div>'
        f"<span><b>{clean(use.used)}</b> of {clean(use.asked)}{about}</span></div>\n"
    )


def _step(facts: Facts) -> str:
    whole = facts.step_seconds
    if whole <= 0:
        return ""
    parts = [(name, spent, place) for place, (name, spent) in enumerate(facts.phases.items())]
    blocks = "".join(
        f'<i style="width:{spent / whole * 100:.2f}%;background:{_colour(place)}" '
        f'title="{clean(name)} {percent(spent / whole)}"></i>'
        for name, spent, place in parts
    )
    keys = "".join(
        f'<span><i style="background:{_colour(place)}"></i>{clean(name)} '
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


def _plots(pictures: Sequence[Picture]) -> str:
    if not pictures:
        return ""
    cards = "".join(
        f'<div class="card{" wide" if each.id in _WIDE else ""}" id="plot-{each.id}">{each.svg}</div>\n'
        for each in pictures
    )
    return f'<h2>Over time</h2>\n<div class="plots">{cards}</div>'


def _attempts(facts: Facts) -> str:
    if not facts.attempts:
        return ""
    good = ""
    if facts.goodput is not None and len(facts.attempts) > 1:
        good = f"<p>Goodput {percent(facts.goodput)}: the share of the allocated time that moved the model forward.</p>"
    return f'<h2>Attempts</h2>\n<div class="card">{good}{_table(tables.attempts(facts))}</div>'


def _gpus(facts: Facts) -> str:
    if not any(gpu.name or gpu.memory for gpu in facts.used.gpus):
        return ""
    table = tables.gpus(facts)
    return _folded(f"GPUs ({len(facts.used.gpus)})", _table(table), len(table.rows) <= 8)


def _findings(facts: Facts) -> str:
    if not facts.findings:
        return ""
    rows = "".join(
        f'<div class="advice {clean(each.severity)}"><b>{clean(each.severity)}'
        f"{f' {clean(each.rule)}' if each.rule else ''}</b><p>{clean(each.message or each.title)}</p>"
        f"{f'<p><code>{clean(each.help)}</code></p>' if each.help else ''}</div>\n"
        for each in facts.findings
    )
    return f"<h2>What lint and check found</h2>\n{rows}"


def _details(facts: Facts) -> str:
    parts = []
    if facts.reproduce:
        lines = "\n".join(facts.reproduce)
        parts.append(f"<h2>To run it again</h2>\n<pre>{clean(lines)}</pre>")
    plan = Table(("Value", "", "Where it came from"), [list(row) for row in facts.values_asked])
    sections = [
        ("Versions", _facts_table(facts.versions.items())),
        ("The Trainer's settings", _facts_table(facts.settings.items())),
        ("The last values", _facts_table(_figures(facts.values))),
        ("Environment", _facts_table(facts.environment.items())),
        ("The plan", _table(plan) if plan.rows else ""),
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
    return (
        f'<div class="card"><details{state}><summary>{clean(title)}</summary>{body}</details></div>'
    )


def _facts_table(pairs: Iterable[tuple[str, str]]) -> str:
    rows = "".join(
        f"<tr><td>{clean(name)}</td><td>{clean(value)}</td></tr>" for name, value in pairs
    )
    return f'<table class="facts">{rows}</table>' if rows else ""


def _table(table: Table) -> str:
    heads = "".join(
        f"<th{_kind(table, n)}>{clean(title)}</th>" for n, title in enumerate(table.titles)
    )
    rows = "".join(
        "<tr>"
        + "".join(f"<td{_kind(table, n)}>{clean(cell)}</td>" for n, cell in enumerate(row))
        + "</tr>\n"
        for row in table.rows
    )
    more = f'<p class="soft">{clean(table.more)}</p>' if table.more else ""
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>\n{rows}</tbody></table></div>{more}'


def _kind(table: Table, column: int) -> str:
    return ' class="num"' if column in table.numbers else ""


def _foot(facts: Facts) -> str:
    remarks = "".join(f"<p>{clean(each)}</p>" for each in facts.remarks)
    made = f"Made by allranks {clean(__version__)}, {when(facts.time)}."
    return f"<footer>{remarks}<p>{made}</p></footer>"
