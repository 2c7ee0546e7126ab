"""Findings for programs: JSON, SARIF (code scanning) and GitHub's annotations."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from allranks._version import __version__
from allranks.lint.finding import Finding, Severity
from allranks.lint.linter import LintReport
from allranks.lint.registry import all_rules
from allranks.lint.source_text import Span


def as_json(report: LintReport) -> str:
    """A list of findings, each with its place and its changes."""
    return json.dumps([_record(each) for each in report.findings], indent=2)


def _record(each: Finding) -> dict[str, Any]:
    return {
        "rule": each.rule,
        "severity": each.severity.word,
        "title": each.title,
        "message": each.message,
        "why": " ".join(each.why.split()),
        "help": each.help,
        "file": each.source.name,
        **_place(each.span),
        "fix": [{**_place(edit.span), "text": edit.text} for edit in each.fix],
    }


def _place(span: Span) -> dict[str, int]:
    last = span.last_line
    end = max(span.start, span.end) - span.source.start_of(last) + 1
    return {"line": span.line, "column": span.column, "end_line": last, "end_column": end}


def as_sarif(report: LintReport) -> str:
    """SARIF 2.1.0, as code-scanning services read it."""
    run = {
        "tool": {"driver": {"name": "allranks lint", "version": __version__, "rules": _rules()}},
        "columnKind": "unicodeCodePoints",
        "results": [_result(each) for each in report.findings],
    }
    log = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [run],
    }
    return json.dumps(log, indent=2)


def _rules() -> list[dict[str, Any]]:
    return [
        {
            "id": rule.id,
            "name": rule.name,
            "shortDescription": {"text": rule.title},
            "fullDescription": {"text": " ".join(rule.why.split())},
            "defaultConfiguration": {"level": rule.severity.word},
        }
        for rule in (each.rule for each in all_rules())
    ]


def _result(each: Finding) -> dict[str, Any]:
    text = f"{each.message} {each.help}".strip()
    return {
        "ruleId": each.rule,
        "level": each.severity.word,
        "message": {"text": text},
        "locations": [{"physicalLocation": _location(each.span)}],
    }


def _location(span: Span) -> dict[str, Any]:
    place = _place(span)
    return {
        "artifactLocation": {"uri": span.source.name},
        "region": {
            "startLine": place["line"],
            "startColumn": place["column"],
            "endLine": place["end_line"],
            "endColumn": max(place["end_column"], place["column"]),
        },
    }


_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}


def as_github(report: LintReport) -> str:
    """One workflow command for each finding."""
    return "\n".join(_annotation(each) for each in report.findings)


def _annotation(each: Finding) -> str:
    place = _place(each.span)
    where = f"file={_property(each.source.name)},line={place['line']},col={place['column']}"
    title = _property(f"{each.rule} {each.title}")
    text = _data(f"{each.message} {each.help}".strip())
    return f"::{_COMMANDS[each.severity]} {where},title={title}::{text}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


FORMATS: dict[str, Callable[[LintReport], str]] = {
    "json": as_json,
    "sarif": as_sarif,
    "github": as_github,
}
