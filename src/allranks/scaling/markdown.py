"""The study as Markdown, to paste into a proposal, a report or a wiki."""

from __future__ import annotations

from allranks.scaling.analysis import Analysis
from allranks.scaling.study import Study
from allranks.scaling.table import headline, make_table

PICTURE = "speedup.svg"


def markdown(study: Study, found: Analysis, *, picture: bool) -> str:
    """A heading, the table, the sentences and how it was measured."""
    table = make_table(study, found)
    lines = [f"## {_escaped(headline(study, found))}", "", _row(table.titles)]
    lines.append("|" + "---:|" * len(table.titles))
    for cells, text in zip(table.cells, table.texts, strict=True):
        shown = cells if not text else [cells[0], text, *[""] * (len(cells) - 2)]
        lines.append(_row(shown))
    for text in (*table.notes, *found.problems, *found.sentences):
        lines += ["", _escaped(text)]
    if picture:
        lines += ["", f"![speed-up over {study.axis.many}]({PICTURE})"]
    return "\n".join([*lines, "", f"Measured with `{study.command}`.", ""])


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(_escaped(cell) for cell in cells) + " |"


def _escaped(text: str) -> str:
    """A bar would end a cell, an angle bracket would begin a tag."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
