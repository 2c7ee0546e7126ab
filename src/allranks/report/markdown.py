"""The report as Markdown: the same numbers and advice, without pictures; for chats, issues and mails."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from allranks._version import __version__
from allranks.report import summary, tables
from allranks.report.advice import Advice
from allranks.report.model import Facts
from allranks.report.summary import changes, verdict
from allranks.report.tables import Table, when
from allranks.report.texts import lines, one_line
from allranks.wording import percent, step_time

_MARK = {"error": "**This went wrong:**", "warning": "**Worth changing:**", "note": "Worth a try:"}
_SPECIAL = re.compile(r"([\\`*_\[\]<>|#])")


def markdown(facts: Facts, advice: Sequence[Advice]) -> str:
    """The whole text."""
    return (
        "\n".join([*_head(facts, advice), *_advice(changes(advice)), *_body(facts)]).rstrip() + "\n"
    )


def _head(facts: Facts, advice: Sequence[Advice]) -> Iterator[str]:
    yield f"# {_plain(facts.name)}: {_plain(facts.state)}"
    yield ""
    known = [facts.id, f"of {facts.user}" if facts.user else "", when(facts.start)]
    yield _plain(" · ".join(each for each in known if each))
    yield ""
    yield _plain(verdict(facts, advice))
    yield ""
    tiles = summary.tiles(facts)
    yield from _table(Table(("", "", ""), [[tile.title, tile.value, tile.about] for tile in tiles]))


def _advice(advice: Sequence[Advice]) -> Iterator[str]:
    if not advice:
        return
    yield from ("", "## What to change", "")
    for each in advice:
        code = f" {_code(each.command)}" if each.command else ""
        yield f"- {_MARK[each.severity]} {_plain(each.text)}{code}"


def _body(facts: Facts) -> Iterator[str]:
    if facts.error is not None and facts.error.traceback:
        yield from ("", "## The first error", "", *_block(facts.error.traceback))
    found = summary.uses(facts)
    if found:
        yield from ("", "## Asked for and used", "")
        rows = [[use.title, use.used, use.asked, use.about] for use in found]
        yield from _table(Table(("", "Used", "Asked for", ""), rows, frozenset({1, 2})))
    asked = [list(pair) for pair in tables.request(facts)]
    yield from ("", *_table(Table(("", ""), asked)))
    if facts.step_seconds:
        yield from ("", f"## A step: {step_time(facts.step_seconds)}", "")
        phases = [
            [name, step_time(value), percent(value / facts.step_seconds)]
            for name, value in facts.phases.items()
        ]
        yield from _table(Table(("", "Time", "Share"), phases, frozenset({1, 2})))
    if facts.findings:
        yield from ("", "## What lint and check found", "")
        for finding in facts.findings:
            rule = f"{finding.severity} {finding.rule}".rstrip()
            code = f" {_code(finding.help)}" if finding.help else ""
            yield f"- **{_plain(rule)}:** {_plain(finding.message or finding.title)}{code}"
    if facts.attempts:
        yield from ("", "## Attempts", "", *_table(tables.attempts(facts)))
    if facts.reproduce:
        yield from ("", "## To run it again", "", *_block("\n".join(facts.reproduce)))
    yield from _end(facts)


def _end(facts: Facts) -> Iterator[str]:
    if facts.versions:
        text = ", ".join(f"{name} {version}" for name, version in facts.versions.items())
        yield from ("", f"Versions: {_plain(text)}")
    for each in facts.remarks:
        yield from ("", _plain(each))
    yield from ("", f"Made by allranks {__version__}, {when(facts.time)}.")


def _table(table: Table) -> Iterator[str]:
    lines = ["---:" if place in table.numbers else "---" for place in range(len(table.titles))]
    for row in ([*table.titles], lines):
        yield "| " + " | ".join(row) + " |"
    for cells in table.rows:
        yield "| " + " | ".join(_plain(cell) for cell in cells) + " |"


def _plain(text: str) -> str:
    """One line in which nothing is taken for Markdown or HTML."""
    return _SPECIAL.sub(r"\\\1", one_line(text))


def _code(text: str) -> str:
    line = one_line(text)
    marks = "``" if "`" in line else "`"
    return f"{marks}{line}{marks}"


def _block(text: str) -> Iterator[str]:
    """Lines of code; the fence is longer than any in the text."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    yield fence
    yield lines(text.rstrip("\n"))
    yield fence
