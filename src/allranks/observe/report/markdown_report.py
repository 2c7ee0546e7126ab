"""The report as Markdown: the same numbers and advice, without pictures; for chats, issues and mails."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from allranks._version import __version__
from allranks.core.formatting import percent, step_time
from allranks.observe.pages.markdown_parts import as_code, block, escaped, table_lines
from allranks.observe.pages.text_table import TextTable
from allranks.observe.report import report_tables as tables
from allranks.observe.report import usage_rows as uses
from allranks.observe.report import verdict as summary
from allranks.observe.report.advice import Advice
from allranks.observe.report.model import RunFacts
from allranks.observe.report.report_tables import when
from allranks.observe.report.verdict import SETTLED, array, changes, verdict

_MARK = {"error": "**This went wrong:**", "warning": "**Worth changing:**", "note": "Worth a try:"}


def markdown(facts: RunFacts, advice: Sequence[Advice]) -> str:
    """The whole text."""
    return (
        "\n".join([*_head(facts, advice), *_advice(changes(advice)), *_body(facts)]).rstrip() + "\n"
    )


def _head(facts: RunFacts, advice: Sequence[Advice]) -> Iterator[str]:
    yield f"# {escaped(facts.name)}: {escaped(facts.state)}"
    yield ""
    began = f"began {when(facts.start)}" if facts.start else ""
    known = [facts.id, f"of {facts.user}" if facts.user else "", began]
    yield escaped(" · ".join(each for each in known if each))
    yield ""
    if facts.tasks:
        yield from (escaped(array(facts)), "")
    yield escaped(verdict(facts, advice))
    yield ""
    tiles = summary.tiles(facts)
    yield from table_lines(
        TextTable(("", "", ""), [[tile.title, tile.value, tile.about] for tile in tiles])
    )


def _advice(advice: Sequence[Advice]) -> Iterator[str]:
    if not advice:
        return
    yield from ("", "## What to change", "")
    for each in advice:
        code = f" {as_code(each.command)}" if each.command else ""
        yield f"- {_MARK[each.severity]} {escaped(each.text)}{code}"


def _body(facts: RunFacts) -> Iterator[str]:
    if facts.error is not None and facts.error.traceback:
        yield from ("", "## The first error", "", *block(facts.error.traceback))
    found = uses.uses(facts)
    if found:
        word = uses.word(facts)
        yield from ("", f"## {word} and used", "")
        rows = [[use.title, use.used, use.asked, use.about] for use in found]
        yield from table_lines(TextTable(("", "Used", word, ""), rows, frozenset({1, 2})))
    asked = [list(pair) for pair in tables.request(facts)]
    yield from ("", *table_lines(TextTable(("", ""), asked)))
    if facts.step_seconds:
        yield from ("", f"## A step: {step_time(facts.step_seconds)}", "")
        phases = [
            [name, step_time(value), percent(value / facts.step_seconds)]
            for name, value in facts.phases.items()
        ]
        yield from table_lines(TextTable(("", "Time", "Share"), phases, frozenset({1, 2})))
    if facts.findings:
        yield from ("", "## What lint and check found", "")
        for finding in facts.findings:
            rule = f"{finding.severity} {finding.rule}".rstrip()
            code = f" {as_code(finding.help)}" if finding.help else ""
            yield f"- **{escaped(rule)}:** {escaped(finding.message or finding.title)}{code}"
    if facts.attempts:
        yield from ("", "## Attempts", "", *table_lines(tables.attempts(facts)))
    ways = [way for way in (facts.reproduce, facts.settled) if way]
    for title, way in zip(("## To run it again", SETTLED), ways, strict=False):
        yield from ("", title, "", *block("\n".join(way)))
    yield from _end(facts)


def _end(facts: RunFacts) -> Iterator[str]:
    if facts.versions:
        text = ", ".join(f"{name} {version}" for name, version in facts.versions.items())
        yield from ("", f"Versions: {escaped(text)}")
    for each in facts.remarks:
        yield from ("", escaped(each))
    yield from ("", f"Made by allranks {__version__}, {when(facts.time)}.")
