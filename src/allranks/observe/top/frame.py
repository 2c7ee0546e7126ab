"""One frame of the live view, as lines that fit the screen. Pure: the same view gives the same lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from allranks.observe.top import footer as foot
from allranks.observe.top import header as head
from allranks.observe.top.footer import ViewSettings
from allranks.observe.top.rank_table import screen_table, shown_rows
from allranks.observe.top.text_layout import BLOCKS, Glyphs, wrap
from allranks.observe.view.model import RunView
from allranks.schedulers.run_state import elapsed

_LOG_LINES = 3
"""Log lines shown at least, beside a long table."""
_PAGE_LINES = 20
"""Log lines of a page without a height."""
_TALL = 24
"""From this height on, blank lines surround the table."""
_EARLY = 300.0
"""Seconds in which any script may have to load first."""
NO_METRICS_HINT = (
    "The script reports no training metrics. With allranks.Trainer this shows its progress, "
    "loss, speed, and where the time of a step goes."
)


@dataclass(frozen=True)
class Frame:
    """The lines, and which rows of the table they show."""

    lines: list[Text]
    first: int = 0
    shown: int = 0
    total: int = 0


def frame(
    run_view: RunView,
    width: int,
    height: int | None = None,
    view: ViewSettings | None = None,
    glyphs: Glyphs = BLOCKS,
) -> Frame:
    """Return the whole screen; without a height every row and no keys, as for a file or a pipe."""
    picture = _FrameBuilder(run_view, view or ViewSettings(), max(width, 1), glyphs)
    if height is None:
        return picture.page()
    if picture.view.help:
        return Frame(foot.help_lines(picture.width, glyphs)[:height])
    return picture.screen(max(height, 1))


@dataclass(frozen=True)
class _Part:
    """Lines that are kept or dropped together; the highest ``rank`` is dropped first, 0 never."""

    lines: Sequence[Text]
    rank: int


class _FrameBuilder:
    """Assembles the parts of a frame, for a screen or for a page without a height."""

    def __init__(self, run_view: RunView, view: ViewSettings, width: int, glyphs: Glyphs) -> None:
        self.run_view = run_view
        self.view = view
        self.width = width
        self.glyphs = glyphs
        self.table = screen_table(run_view, view, width, glyphs)
        below = foot.attempts(run_view, width, glyphs)
        self.below = _Part([below] if below else [], 4)

    def page(self) -> Frame:
        """Return everything, from top to bottom."""
        table = self.table
        lines = _lines(self._above())
        if table.count:
            lines += [Text(), table.head, *(table.row(number) for number in range(table.count))]
        if end := [*self.below.lines, *self._tail(_PAGE_LINES)]:
            lines += [Text(), *end]
        return Frame(lines, 0, table.count, table.count)

    def screen(self, height: int) -> Frame:
        """Return as many lines as the screen has, the keys on the last one."""
        count = self.table.count
        logs = len(self._tail(min(_LOG_LINES, height // 6)))
        wanted = min(count, height // 5) + 1 if count and height > 7 else 0
        parts = _drop_parts([*self._above(), self.below], height - 1 - logs - wanted)
        below = [*self.below.lines] if self.below in parts else []
        above = _lines([part for part in parts if part is not self.below])
        room = height - len(above) - len(below) - logs - 1
        free = 1 if count and (height >= _TALL or room > count + 2) else 0
        shown = max(min(room - 1 - 2 * free, count), 0)
        first = max(min(self.view.first, count - shown), 0)
        middle = self._middle(first, shown, free)
        end = [*below, *self._tail(room - len(middle) - free + logs)]
        fill = [Text()] * (height - 1 - len(above) - len(middle) - len(end))
        lines = [*above, *middle, *fill, *end][: max(height - 1, 1)]
        keys = [self._keys(first, shown)] if height > 1 else []
        return Frame([*lines, *keys], first, shown, count)

    def _above(self) -> list[_Part]:
        """Return the parts above the table, in the order of the screen."""
        how = (self.run_view, self.width, self.glyphs)
        progress, times = _part(head.progress(*how), 1), _part(head.times(*how), 5)
        metric_parts = [
            _part(head.loss(*how), 3),
            _part(head.speed(*how), 6),
            _Part(head.step(*how), 7),
        ]
        if (
            not any(part.lines for part in (progress, *metric_parts))
            and self.run_view.status.attempts
        ):
            metric_parts = [
                _Part(
                    wrap(_no_progress_text(self.run_view), self.width, 2, "dim", self.glyphs.more),
                    8,
                )
            ]
        first = [_Part([head.title(*how)], 0), _Part(head.notices(*how), 2)]
        return [*first, progress, times, *metric_parts]

    def _middle(self, first: int, shown: int, free: int) -> list[Text]:
        if not shown:
            return []
        table = self.table
        return [*[Text()] * free, table.head, *(table.row(first + n) for n in range(shown))]

    def _tail(self, most: int) -> list[Text]:
        return foot.tail(self.run_view, self.width, most, self.glyphs)

    def _keys(self, first: int, shown: int) -> Text:
        place, total = "", self.table.count
        if shown < total:
            what = shown_rows(self.run_view, self.view)
            place = f"{what} {first + 1}-{first + shown} of {total}"
        return foot.keys(self.view, self.width, place, self.glyphs)


def _no_progress_text(run_view: RunView) -> str:
    """Return the text shown in place of the progress; a Trainer's script is given time to load."""
    status = run_view.status
    early = not status.state.ended and (elapsed(status, run_view.time) or 0.0) < _EARLY
    if not run_view.trainer and not early:
        return NO_METRICS_HINT
    return "It ended before its first step." if status.state.ended else "no step yet"


def _drop_parts(parts: list[_Part], most: int) -> list[_Part]:
    """Drop the least important parts until the rest fits."""
    while len(_lines(parts)) > most:
        full = [part for part in parts if part.lines and part.rank]
        if not full:
            break
        least = max(full, key=lambda part: part.rank)
        parts = [part for part in parts if part is not least]
    return parts


def _part(line: Text | None, rank: int) -> _Part:
    return _Part([] if line is None else [line], rank)


def _lines(parts: Sequence[_Part]) -> list[Text]:
    return [line for part in parts for line in part.lines]
