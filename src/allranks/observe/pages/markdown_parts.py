"""Pieces of Markdown, whatever the text holds that is put into them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from allranks.core.formatting import clean_lines, one_line
from allranks.observe.pages.text_table import TextTable

_SPECIAL = re.compile(r"([\\`*_\[\]<>|#&~])")


def escaped(text: str) -> str:
    """One line in which nothing is taken for Markdown or HTML."""
    return _plain(one_line(text))


def prose(text: str) -> str:
    """Our own sentences, which name commands between backticks."""
    parts = enumerate(one_line(text).split("`"))
    return "".join(as_code(part) if place % 2 else _plain(part) for place, part in parts)


def as_code(text: str) -> str:
    """One line of code; the marks around it are longer than any in it."""
    line = one_line(text)
    marks = "`" * (_longest_marks(line) + 1)
    space = " " if "`" in (line[:1], line[-1:]) else ""
    return f"{marks}{space}{line}{space}{marks}"


def block(text: str) -> Iterator[str]:
    """Lines of code; the fence is longer than any in the text."""
    fence = "`" * max(3, _longest_marks(text) + 1)
    yield fence
    yield clean_lines(text.rstrip("\n"))
    yield fence


def table_lines(table: TextTable) -> Iterator[str]:
    """The table without what stands below it; its titles are ours."""
    kinds = ["---:" if place in table.numbers else "---" for place in range(len(table.titles))]
    yield "| " + " | ".join(table.titles) + " |"
    yield "| " + " | ".join(kinds) + " |"
    for row in table.rows:
        cells = [*map(escaped, row), *[""] * (len(table.titles) - len(row))]
        yield "| " + " | ".join(cells) + " |"


def _plain(line: str) -> str:
    return _SPECIAL.sub(r"\\\1", line)


def _longest_marks(text: str) -> int:
    return max(map(len, re.findall(r"`+", text)), default=0)
