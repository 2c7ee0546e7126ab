"""HTML pages that need no other file, and Markdown; text that is put into them is escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from allranks.core.formatting import clean_lines, one_line
from allranks.core.plots.svg import escaped
from allranks.observe.pages.style import css


@dataclass(frozen=True)
class TextTable:
    """Rows of text below titles. In a row with fewer cells the last one spans the rest."""

    titles: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: frozenset[int] = field(default_factory=frozenset)
    """Columns that hold numbers."""
    more: str = ""
    """What stands below: what was left out, what the titles mean."""


def html_document(title: str, body: str) -> str:
    """Return the whole page around its body."""
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escaped(title)}</title>\n<style>\n{css()}\n</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n"
        "</body>\n</html>\n"
    )


def html_facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Return names and values below each other; empty when there are none."""
    rows = "".join(
        f"<tr><td>{escaped(name)}</td><td>{escaped(value)}</td></tr>" for name, value in pairs
    )
    return f'<table class="facts">{rows}</table>' if rows else ""


def html_table(table: TextTable) -> str:
    """Return the table and the note below it."""
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


_SPECIAL = re.compile(r"([\\`*_\[\]<>|#&~])")


def escape_markdown(text: str) -> str:
    """Return one line in which nothing is interpreted as Markdown or HTML."""
    return _plain(one_line(text))


def markdown_prose(text: str) -> str:
    """Return sentences of ours, in which commands stand between backticks."""
    parts = enumerate(one_line(text).split("`"))
    return "".join(markdown_code(part) if place % 2 else _plain(part) for place, part in parts)


def markdown_code(text: str) -> str:
    """Return one line of code; its backticks are longer than any in it."""
    line = one_line(text)
    marks = "`" * (_longest_marks(line) + 1)
    space = " " if "`" in (line[:1], line[-1:]) else ""
    return f"{marks}{space}{line}{space}{marks}"


def markdown_block(text: str) -> Iterator[str]:
    """Yield lines of code; the fence is longer than any in the text."""
    fence = "`" * max(3, _longest_marks(text) + 1)
    yield fence
    yield clean_lines(text.rstrip("\n"))
    yield fence


def markdown_table(table: TextTable) -> Iterator[str]:
    """Yield the table without the note below it; its titles are trusted."""
    kinds = ["---:" if place in table.numbers else "---" for place in range(len(table.titles))]
    yield "| " + " | ".join(table.titles) + " |"
    yield "| " + " | ".join(kinds) + " |"
    for row in table.rows:
        cells = [*map(escape_markdown, row), *[""] * (len(table.titles) - len(row))]
        yield "| " + " | ".join(cells) + " |"


def _plain(line: str) -> str:
    return _SPECIAL.sub(r"\\\1", line)


def _longest_marks(text: str) -> int:
    return max(map(len, re.findall(r"`+", text)), default=0)
