"""The study as Markdown, to paste into a proposal, a report or a wiki."""

from __future__ import annotations

from allranks.observe.pages.markdown_parts import as_code, escaped, prose, table_lines
from allranks.observe.scaling.analysis import Analysis
from allranks.observe.scaling.study_file import Study
from allranks.observe.scaling.study_table import headline, make_table

PICTURE = "speedup.svg"


def markdown(study: Study, found: Analysis, *, picture: bool) -> str:
    """A heading, the table, the sentences and how it was measured."""
    table = make_table(study, found)
    lines = [f"## {escaped(headline(study, found))}", "", *table_lines(table)]
    for text in filter(None, (table.more, *found.problems)):
        lines += ["", escaped(text)]
    for text in found.sentences:
        lines += ["", prose(text)]
    if picture:
        lines += ["", f"![speed-up over {study.axis.many}]({PICTURE})"]
    return "\n".join([*lines, "", f"Measured with {as_code(study.command)}.", ""])
