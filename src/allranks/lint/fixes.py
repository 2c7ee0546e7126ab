"""Safe changes, made all at once: where two overlap, the second waits for the next run."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path

from allranks.errors import UsageError
from allranks.lint.finding import Edit, Finding
from allranks.lint.linter import LintReport
from allranks.lint.source_text import SourceFile


def apply_fixes(report: LintReport, *, write: bool) -> Iterator[tuple[str, str, str]]:
    """Name, old and new text of every file that changes; written back when asked for."""
    for source, findings in _by_file(report):
        new = fixed_text(source, findings)
        if new == source.text:
            continue
        if write:
            _write(source, new)
        yield source.name, source.text, new


def fixed_text(source: SourceFile, findings: list[Finding]) -> str:
    """The text with every change that does not touch another one."""
    chosen: list[Edit] = []
    for finding in findings:
        if all(not _overlap(edit, other) for edit in finding.fix for other in chosen):
            chosen += finding.fix
    text = source.text
    # from the end, so that earlier places stay where they are
    for edit in sorted(chosen, key=lambda each: (each.span.start, each.span.end), reverse=True):
        text = text[: edit.span.start] + edit.text + text[edit.span.end :]
    return text


def diff_of(name: str, old: str, new: str) -> str:
    """The change as a unified diff."""
    lines = difflib.unified_diff(
        old.splitlines(keepends=True), new.splitlines(keepends=True), name, f"{name} (fixed)"
    )
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def _by_file(report: LintReport) -> Iterator[tuple[SourceFile, list[Finding]]]:
    groups: dict[str, tuple[SourceFile, list[Finding]]] = {}
    for finding in report.findings:
        if finding.fix and all(edit.span.source is finding.source for edit in finding.fix):
            groups.setdefault(finding.source.name, (finding.source, []))[1].append(finding)
    yield from groups.values()


def _overlap(one: Edit, other: Edit) -> bool:
    a, b = one.span, other.span
    if a.source is not b.source:
        return False
    return (a.start < b.end and b.start < a.end) or (a.start, a.end) == (b.start, b.end)


def _write(source: SourceFile, text: str) -> None:
    path = source.path or Path(source.name)
    if not path.exists():
        raise UsageError("Standard input cannot be fixed in place. Use --diff.")
    path.write_bytes(text.encode("utf-8"))
