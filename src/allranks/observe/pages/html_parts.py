"""A page that needs nothing else: no script, no other file, no network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from allranks.core.plots.svg import escaped
from allranks.observe.pages.style import css
from allranks.observe.pages.text_table import TextTable


def document(title: str, body: str) -> str:
    """The whole page around its body."""
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escaped(title)}</title>\n<style>\n{css()}\n</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n"
        "</body>\n</html>\n"
    )


def facts_of(pairs: Iterable[tuple[str, str]]) -> str:
    """Names and values below each other; empty when there are none."""
    rows = "".join(
        f"<tr><td>{escaped(name)}</td><td>{escaped(value)}</td></tr>" for name, value in pairs
    )
    return f'<table class="facts">{rows}</table>' if rows else ""


def table_of(table: TextTable) -> str:
    """The table, and what stands below it."""
    heads = "".join(
        f"<th{_kind(table, n)}>{escaped(title)}</th>" for n, title in enumerate(table.titles)
    )
    rows = "".join(f"<tr>{_cells(table, row)}</tr>\n" for row in table.rows)
    more = f'<p class="soft">{escaped(table.more)}</p>' if table.more else ""
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>\n{rows}</tbody></table></div>{more}'


def _cells(table: TextTable, row: Sequence[str]) -> str:
    kinds = [_kind(table, n) for n in range(len(row))]
    if left := len(table.titles) - len(row):
        kinds[-1] = f' colspan="{left + 1}"'
    return "".join(f"<td{kind}>{escaped(cell)}</td>" for kind, cell in zip(kinds, row, strict=True))


def _kind(table: TextTable, column: int) -> str:
    return ' class="num"' if column in table.numbers else ""
