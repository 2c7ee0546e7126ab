"""A study while it goes on: on a terminal a table that is drawn again, elsewhere a line for each change."""

from __future__ import annotations

import shutil
import sys
from typing import TextIO

from allranks.errors import AllranksError
from allranks.scaling.analysis import analyse, measured
from allranks.scaling.states import plain
from allranks.scaling.study import DONE, Point, Study
from allranks.scaling.table import seconds_text, significant, terminal_table


class TextView:
    """Tells what happens to the points on stderr; stdout is for the result."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stderr
        self._drawn = 0
        self._said: dict[tuple[int, int], str] = {}

    def begins(self, study: Study, point: Point) -> None:
        """A point starts here, or was submitted."""
        if study.where == "slurm":
            self._say(f"{self._name(study, point)}: job {point.job_id}")
        elif not self._out.isatty():
            self._say(f"{self._name(study, point)}: running")

    def ended(self, study: Study, point: Point) -> None:
        """A point has ended here, or could not be submitted."""
        self._say(f"{self._name(study, point)}: {_end(study, point)}")

    def look(self, study: Study) -> None:
        """Jobs were asked for: draw the table again, or say what changed."""
        if self._out.isatty():
            self._draw(study)
            return
        for point in study.points:
            state = f"{point.state}: {plain(point.why)}" if point.why else point.state
            key = point.size, point.repeat
            if self._said.get(key) != state:
                self._said[key] = state
                self._say(f"{self._name(study, point)}: {state}")

    def close(self) -> None:
        """Take the live table away: the result follows."""
        self._wipe()

    def _draw(self, study: Study) -> None:
        width = max(shutil.get_terminal_size().columns, 60)
        table = terminal_table(study, analyse(study), min(width, 100))
        self._wipe()
        hint = "Ctrl-C leaves the jobs in the queue."
        self._out.write(f"{table}\n\n{hint}\n")
        self._drawn = table.count("\n") + 3
        self._out.flush()

    def _wipe(self) -> None:
        if self._drawn:
            self._out.write(f"\x1b[{self._drawn}A\x1b[J")
            self._drawn = 0

    def _say(self, text: str) -> None:
        print(f"  {text}", file=self._out, flush=True)

    def _name(self, study: Study, point: Point) -> str:
        again = f", {point.repeat} of {study.repeats}" if study.repeats > 1 else ""
        return f"{study.axis.count(point.size)}{again}"


def _end(study: Study, point: Point) -> str:
    if point.state != DONE:
        return f"{point.state}: {plain(point.why)}"
    try:
        found = measured(study, point)
    except AllranksError as error:
        return f"done, but {plain(str(error))}"
    if found.unit == "runs":
        return f"done in {seconds_text(1 / found.rate)}"
    return f"{significant(found.rate)} {found.unit}/s"
