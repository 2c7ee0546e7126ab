"""Findings for people: the line, a caret under the place, what is wrong and what to type."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator

from allranks.lint.finding import ERROR, NOTE, WARNING, Finding, Severity
from allranks.lint.linter import Settings
from allranks.lint.registry import all_rules
from allranks.lint.rule import Rule
from allranks.lint.source_text import Span

_WIDTH = 80
_COLOURS = {ERROR: "\033[1;31m", WARNING: "\033[1;33m", NOTE: "\033[1;36m"}
_BOLD, _FAINT, _END = "\033[1m", "\033[2m", "\033[0m"


class Painter:
    """Colours, or none."""

    def __init__(self, colours: bool) -> None:
        self.colours = colours

    def severity(self, severity: Severity, text: str) -> str:
        """Text in the colour of a severity."""
        return f"{_COLOURS[severity]}{text}{_END}" if self.colours else text

    def bold(self, text: str) -> str:
        """Text that stands out."""
        return f"{_BOLD}{text}{_END}" if self.colours else text

    def faint(self, text: str) -> str:
        """Text that steps back."""
        return f"{_FAINT}{text}{_END}" if self.colours else text


def show(findings: Iterable[Finding], paint: Painter) -> Iterator[str]:
    """The lines to print, with a blank line after each finding."""
    for each in findings:
        yield _head(each, paint)
        yield from _excerpt(each, paint)
        yield from _paragraph(each.message, "  ")
        if each.help:
            yield from _paragraph(each.help, "  ", first=f"  {paint.bold('fix:')} ")
        yield ""


def summary(findings: list[Finding], files: int, paint: Painter) -> str:
    """The last line."""
    place = f"{files} file{'s' if files != 1 else ''}"
    if not findings:
        return f"{place}: nothing found."
    counts = Counter(each.severity for each in findings)
    words = [
        paint.severity(
            severity, f"{counts[severity]} {severity.word}{'s' if counts[severity] != 1 else ''}"
        )
        for severity in (ERROR, WARNING, NOTE)
        if counts[severity]
    ]
    fixable = sum(bool(each.fix) for each in findings)
    more = f" --fix can fix {fixable}." if fixable else ""
    return f"{place}: {', '.join(words)}.{more}"


def _head(each: Finding, paint: Painter) -> str:
    place = f"{each.source.name}:{each.span.line}:{each.span.column}:"
    label = paint.severity(each.severity, f"{each.severity.word} {each.rule}")
    return f"{paint.bold(place)} {label} {paint.bold(each.title)}"


def _excerpt(each: Finding, paint: Painter) -> Iterator[str]:
    span = each.span
    line = span.source.line(span.line)
    if not line.strip():
        return
    start, end = span.column - 1, _end_column(span, line)
    offset = max(0, min(start - 10, len(line) - 60)) if len(line) > 70 else 0
    shown = _clean(line[offset : offset + 70])
    number = f"{span.line:>5}"
    carets = " " * (start - offset) + "^" * max(1, min(end, offset + 70) - start)
    yield f"{paint.faint(number + ' |')} {shown.rstrip()}"
    yield f"{paint.faint('      |')} {paint.severity(each.severity, carets)}"


def _end_column(span: Span, line: str) -> int:
    return (
        len(line.rstrip())
        if span.last_line > span.line
        else span.column - 1 + span.end - span.start
    )


def _clean(text: str) -> str:
    """One column for each character: tabs and control characters become blanks."""
    return "".join(character if character.isprintable() else " " for character in text)


def _paragraph(text: str, indent: str, first: str = "") -> Iterator[str]:
    for index, line in enumerate(text.split("\n")):
        lead = first if first and not index else indent
        if line.startswith("    "):  # code to type stays as it is
            yield f"{indent}{line}"
            continue
        wrapped = textwrap.wrap(
            line, _WIDTH, initial_indent=lead, subsequent_indent=indent,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
        yield from wrapped or [indent.rstrip()]


def list_rules(settings: Settings) -> str:
    """A line for each rule; whole pages for the rules that are selected."""
    chosen = [each.rule for each in all_rules() if settings.wants(each.rule.id)]
    if settings.select:
        return "\n\n".join(_page(rule) for rule in chosen)
    return "\n".join(f"{rule.id}  {rule.severity.word:<8} {rule.title}" for rule in chosen)


def _page(rule: Rule) -> str:
    why = "\n".join(textwrap.wrap(" ".join(rule.why.split()), 80))
    bad = textwrap.indent(rule.bad.strip(), "    ")
    good = textwrap.indent(rule.good.strip(), "    ")
    return f"{rule.id} {rule.name} ({rule.severity.word})\n{rule.title}\n\n{why}\n\nBad:\n{bad}\n\nGood:\n{good}"
