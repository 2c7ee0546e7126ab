"""The report as Markdown, for chats, issues and mails, and as JSON, described in ``docs/report.md``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from allranks._version import __version__
from allranks.core.formatting import clean_lines, percent, step_time
from allranks.observe.pages.documents import (
    TextTable,
    escape_markdown,
    markdown_block,
    markdown_code,
    markdown_table,
)
from allranks.observe.report import report_tables as tables
from allranks.observe.report import report_tables as uses
from allranks.observe.report import verdict as summary
from allranks.observe.report.advice import Advice, is_measured_enough
from allranks.observe.report.model import RunFacts
from allranks.observe.report.report_tables import format_moment
from allranks.observe.report.verdict import EXACT_TITLE, array_summary, suggested_changes, verdict
from allranks.observe.view.view_json import json_value

_MARK = {"error": "**This went wrong:**", "warning": "**Worth changing:**", "note": "Worth a try:"}


def markdown_report(facts: RunFacts, advice: Sequence[Advice]) -> str:
    """Return the whole Markdown text."""
    return (
        "\n".join(
            [*_head(facts, advice), *_advice(suggested_changes(advice)), *_body(facts)]
        ).rstrip()
        + "\n"
    )


def _head(facts: RunFacts, advice: Sequence[Advice]) -> Iterator[str]:
    yield f"# {escape_markdown(facts.name)}: {escape_markdown(facts.state)}"
    yield ""
    began = f"began {format_moment(facts.start)}" if facts.start else ""
    known = [facts.id, f"of {facts.user}" if facts.user else "", began]
    yield escape_markdown(" · ".join(each for each in known if each))
    yield ""
    if facts.tasks:
        yield from (escape_markdown(array_summary(facts)), "")
    yield escape_markdown(verdict(facts, advice))
    yield ""
    tiles = summary.tiles(facts)
    yield from markdown_table(
        TextTable(("", "", ""), [[tile.title, tile.value, tile.about] for tile in tiles])
    )


def _advice(advice: Sequence[Advice]) -> Iterator[str]:
    if not advice:
        return
    yield from ("", "## What to change", "")
    for each in advice:
        code = f" {markdown_code(each.command)}" if each.command else ""
        yield f"- {_MARK[each.severity]} {escape_markdown(each.text)}{code}"


def _body(facts: RunFacts) -> Iterator[str]:
    if facts.error is not None and facts.error.traceback:
        yield from ("", "## The first error", "", *markdown_block(facts.error.traceback))
    found = uses.resource_uses(facts)
    if found:
        word = uses.request_title(facts)
        yield from ("", f"## {word} and used", "")
        rows = [[use.title, use.used, use.requested, use.about] for use in found]
        yield from markdown_table(TextTable(("", "Used", word, ""), rows, frozenset({1, 2})))
    asked = [list(pair) for pair in tables.request_rows(facts)]
    yield from ("", *markdown_table(TextTable(("", ""), asked)))
    if facts.step_seconds:
        yield from ("", f"## A step: {step_time(facts.step_seconds)}", "")
        phases = [
            [name, step_time(value), percent(value / facts.step_seconds)]
            for name, value in facts.phases.items()
        ]
        yield from markdown_table(TextTable(("", "Time", "Share"), phases, frozenset({1, 2})))
    if facts.findings:
        yield from ("", "## What lint and check found", "")
        for finding in facts.findings:
            rule = f"{finding.severity} {finding.rule}".rstrip()
            code = f" {markdown_code(finding.help)}" if finding.help else ""
            yield f"- **{escape_markdown(rule)}:** {escape_markdown(finding.message or finding.title)}{code}"
    if facts.attempts:
        yield from ("", "## Attempts", "", *markdown_table(tables.attempt_table(facts)))
    ways = [way for way in (facts.original_command, facts.exact_command) if way]
    for title, way in zip(("## To run it again", EXACT_TITLE), ways, strict=False):
        yield from ("", title, "", *markdown_block("\n".join(way)))
    yield from _end(facts)


def _end(facts: RunFacts) -> Iterator[str]:
    if facts.versions:
        text = ", ".join(f"{name} {version}" for name, version in facts.versions.items())
        yield from ("", f"Versions: {escape_markdown(text)}")
    for each in facts.limitations:
        yield from ("", escape_markdown(each))
    yield from ("", f"Made by allranks {__version__}, {format_moment(facts.time)}.")


FORMAT = 1
"""Goes up when a key changes its meaning or goes away; new ones may come at any time."""


def report_record(facts: RunFacts, advice: Sequence[Advice]) -> dict[str, Any]:
    """Return sizes in bytes, times in seconds or ISO 8601, shares from 0 to 1; null is unknown."""
    content = {
        "format": FORMAT,
        "allranks": __version__,
        "verdict": verdict(facts, advice),
        "judged": is_measured_enough(facts),
        "advice": list(advice),
        **vars(facts),
        "step_seconds": facts.step_seconds or None,
        "plan_values": [
            {"name": name, "value": value, "origin": origin}
            for name, value, origin in facts.plan_values
        ],
    }
    content["used"] = {
        **vars(facts.used),
        "gpu_use": facts.used.gpu_use,
        "gpu_memory": facts.used.gpu_memory,
    }
    found: dict[str, Any] = _clean(json_value(content))
    return found


def _clean(value: Any) -> Any:
    """Clean every text of control characters, line by line."""
    if isinstance(value, str):
        return clean_lines(value)
    if isinstance(value, dict):
        return {clean_lines(name): _clean(each) for name, each in value.items()}
    return [_clean(each) for each in value] if isinstance(value, list) else value
