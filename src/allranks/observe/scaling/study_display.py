"""Show a study while it runs: a table that is redrawn on a terminal, else a line for each change."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TextIO

from rich.cells import cell_len, set_cell_size

from allranks.core.formatting import one_line
from allranks.errors import AllranksError
from allranks.observe.scaling.analysis import MeasuredRuns, analyse, measure_point
from allranks.observe.scaling.scaling_study import DONE, Point, Study
from allranks.observe.scaling.study_table import (
    WIDEST,
    format_significant,
    format_wall_time,
    terminal_table,
)


class TextDisplay:
    """Prints the states of the points on stderr; stdout is for the result."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stderr
        self._drawn: list[str] = []
        self.known: MeasuredRuns = {}
        self._said: dict[tuple[int, int], str] = {}

    def point_started(self, study: Study, point: Point) -> None:
        """Show that a point started here, or was submitted."""
        if study.is_queued:
            self._say(f"{self._name(study, point)}: job {point.job_id}")
        elif not self._out.isatty():
            self._say(f"{self._name(study, point)}: running")

    def point_ended(self, study: Study, point: Point) -> None:
        """Show that a point ended here, or could not be submitted."""
        self._say(f"{self._name(study, point)}: {_result_text(study, point, self.known)}")

    def refresh(self, study: Study) -> None:
        """Redraw the table after jobs were polled, or print what changed."""
        if self._out.isatty():
            self._draw(study)
            return
        for point in study.points:
            state = f"{point.state}: {one_line(point.why)}" if point.why else point.state
            key = point.size, point.repeat
            if self._said.get(key) != state:
                self._said[key] = state
                self._say(f"{self._name(study, point)}: {state}")

    def close(self) -> None:
        """Remove the live table; the result follows."""
        self._wipe()

    def _draw(self, study: Study) -> None:
        columns, rows = self._screen()
        table = terminal_table(study, analyse(study, self.known), min(columns, WIDEST)).split("\n")
        foot = ["", "Ctrl-C leaves the jobs in the queue."]
        room = max(rows - len(foot) - 1, 1)  # the cursor stands in the line below
        if len(table) > room:
            left = len(table) - room + 1
            table = [*table[: room - 1], f"… {left} more lines, see --show"]
        self._wipe()
        self._drawn = [_cut(line, columns) for line in (*table, *foot)]
        self._out.write("".join(f"{line}\n" for line in self._drawn))
        self._out.flush()

    def _wipe(self) -> None:
        """Erase what was drawn, as high as the terminal shows it now: it may have become narrower."""
        columns, rows = self._screen()
        height = sum(max(1, -(-cell_len(line) // columns)) for line in self._drawn)
        if height:
            self._out.write(f"\x1b[{min(height, rows - 1)}A\x1b[J")
            self._drawn = []

    def _screen(self) -> tuple[int, int]:
        """Return the columns and rows of the terminal drawn on; stdout may be a file."""
        try:
            columns, rows = os.get_terminal_size(self._out.fileno())
        except (OSError, ValueError):
            columns = rows = 0
        usual = shutil.get_terminal_size()
        return columns or usual.columns, rows or usual.lines

    def _say(self, text: str) -> None:
        print(f"  {text}", file=self._out, flush=True)

    def _name(self, study: Study, point: Point) -> str:
        again = f", {point.repeat} of {study.repeats}" if study.repeats > 1 else ""
        return f"{study.axis.count(point.size)}{again}"


def _cut(line: str, columns: int) -> str:
    """Cut a line to the width of the terminal, where a wrapped one would take two rows."""
    return line if cell_len(line) <= columns else set_cell_size(line, columns)


def _result_text(study: Study, point: Point, known: MeasuredRuns) -> str:
    if point.state != DONE:
        return f"{point.state}: {one_line(point.why)}"
    try:
        found = measure_point(study, point, known)
    except AllranksError as error:
        return f"done, but {one_line(str(error))}"
    if found.unit == "runs":
        return f"done in {format_wall_time(1 / found.rate)}"
    return f"{format_significant(found.rate)} {found.unit}/s"
