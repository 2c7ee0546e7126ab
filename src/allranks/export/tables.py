"""A table of a run as CSV, as a spreadsheet takes it."""

from __future__ import annotations

import csv
from typing import TextIO

from allranks.runs.folder import Run
from allranks.runs.metrics import Metrics


def write_csv(run: Run, table: str, file: TextIO) -> int:
    """Titles, then a line per row; absent values are empty. How many rows there were.

    Line by line: a table of many ranks need not fit into memory.
    """
    metrics = Metrics(run.path)
    names = metrics.names(table)
    if not names:
        return 0
    writer = csv.DictWriter(file, names, restval="", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    count = 0
    for row in metrics.rows(table):
        writer.writerow(row)
        count += 1
    return count
