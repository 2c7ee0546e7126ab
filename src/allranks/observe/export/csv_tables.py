"""A table of a run as CSV, as a spreadsheet takes it."""

from __future__ import annotations

import csv
from typing import Any, TextIO

from allranks.runs.metrics_tables import Metrics
from allranks.runs.run import Run


def write_csv(run: Run, table: str, file: TextIO) -> int:
    """Titles, then a line per row; absent values are empty. How many rows there were.

    Line by line: a table of many ranks need not fit into memory.
    """
    metrics = Metrics(run.path)
    names = metrics.names(table)
    if not names:
        return 0
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(map(_cell, names))
    count = 0
    for row in metrics.rows(table):
        writer.writerow(_cell(row.get(name)) for name in names)
        count += 1
    return count


def _cell(value: Any) -> Any:
    """Lists by their words; of a text what can be written."""
    if isinstance(value, list):
        value = " ".join(map(str, value))
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
