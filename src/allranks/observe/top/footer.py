"""The lower part of the screen: attempts, the error or the last log lines, the keys and what they change."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from rich.text import Text

from allranks.core.formatting import clean, clock
from allranks.observe.top.text_layout import Glyphs, LinePiece, cut, fit, percent, wrap
from allranks.observe.view.model import RunView
from allranks.runs.attempt import Failure

HELP = (
    ("q", "quit; the run continues"),
    ("r  n", "a row per rank, or per node"),
    ("s", "slowest first, or in order"),
    ("up down", "scroll by a row (also k j)"),
    ("PgUp PgDn", "scroll by a page (also b, space)"),
    ("Home End", "the first row, the last row (also g G)"),
    ("p", "pause, or resume updates"),
    ("?", "this help; any key closes it"),
)
"""Keys and what they do, for the help and the documentation."""

_BY_ROW = {"up": -1, "k": -1, "down": 1, "j": 1}
_BY_PAGE = {"pageup": -1, "b": -1, "pagedown": 1, " ": 1}
_ENDS = {"home": 0, "g": 0, "end": 10**9, "G": 10**9}


@dataclass(frozen=True)
class ViewSettings:
    """What the user chose to see."""

    rows: str = ""
    """"ranks", "nodes", or empty: what the run has more to say by."""
    slowest: bool = False
    """Whether the slowest rows come first."""
    first: int = 0
    """The row at the top of the table."""
    page: int = 1
    """How many rows are shown."""
    paused: bool = False
    help: bool = False
    quit: bool = False

    def after_key(self, key: str) -> ViewSettings:
        """Return the settings after this key; unknown keys change nothing."""
        if self.help:
            return replace(self, help=False)
        if key == "q":
            return replace(self, quit=True)
        if key in ("n", "r"):
            return replace(self, rows="nodes" if key == "n" else "ranks", first=0)
        if key == "s":
            return replace(self, slowest=not self.slowest, first=0)
        if key == "p":
            return replace(self, paused=not self.paused)
        if key == "?":
            return replace(self, help=True)
        return replace(self, first=max(self._scrolled(key), 0))

    def _scrolled(self, key: str) -> int:
        if key in _ENDS:
            return _ENDS[key]
        rows = _BY_ROW.get(key, 0) + _BY_PAGE.get(key, 0) * max(self.page, 1)
        return self.first + rows


_LONGEST = 2000
"""Characters of a line of a traceback."""
_KEYS = (
    ("q", "quit", 0),
    ("?", "help", 1),
    ("r", "ranks", 2),
    ("n", "nodes", 2),
    ("s", "slowest first", 3),
    ("p", "pause", 4),
)


def attempts(run_view: RunView, width: int, glyphs: Glyphs) -> Text | None:
    """Return the number of attempts, their outcomes and the goodput."""
    ended = [entry for entry in run_view.attempts if entry.outcome != "running"]
    count = len(run_view.attempts)
    pieces = []
    if count > 1:
        pieces.append(LinePiece.of(f"{count} attempts"))
        outcomes = Counter(entry.outcome for entry in ended)
        text = ", ".join(f"{number} {outcome}" for outcome, number in outcomes.items())
        pieces.append(LinePiece.of(clean(text), rank=2))
    total = run_view.goodput
    # Rank 0 reports its progress at intervals: before the first report the goodput would be 0.
    known = any(entry.first_step is not None for entry in ended) or (total and total.useful > 0)
    if total is not None and total.share is not None and known:
        pieces.append(LinePiece.of(f"goodput {percent(total.share)}", rank=1))
        text = f"{clock(total.useful)} of {clock(total.allocated)} moved the model forward"
        pieces.append(LinePiece.of(text, "dim", rank=3))
    return fit(pieces, width, glyphs.more) if pieces else None


def tail(run_view: RunView, width: int, most: int, glyphs: Glyphs) -> list[Text]:
    """Return the error if there is one, else the last log lines."""
    if most <= 0:
        return []
    if run_view.error is not None:
        return _error(run_view.error, width, most, glyphs)
    lines = [clean(line) for line in run_view.last_lines]
    kept = [line for line in lines if line.strip()][-most:]
    return [cut(Text(line, "dim"), width, glyphs.more) for line in kept]


def _error(failure: Failure, width: int, most: int, glyphs: Glyphs) -> list[Text]:
    """Return the failed rank and the end of its traceback, with the error line among them."""
    where = f" on {clean(failure.host)}" if failure.host else ""
    head = Text(f"rank {failure.rank}{where} failed first: {clean(failure.how)}", "bold red")
    room = most - 1
    error, *trace = (
        wrap(clean(line)[:_LONGEST], width, room, "red", glyphs.more)
        for line in (failure.error, *failure.traceback.splitlines()[-most:])
    )
    shown = _last([part for line in trace for part in line], room)
    if error and error[0] not in shown:
        shown = [*error, *_last(shown, room - len(error))]
    return [cut(head, width, glyphs.more), *shown]


def _last(lines: list[Text], most: int) -> list[Text]:
    return lines[max(len(lines) - most, 0) :]


def keys(view: ViewSettings, width: int, place: str, glyphs: Glyphs) -> Text:
    """Return the keys that work, and which rows are shown."""
    pieces = [
        LinePiece(
            Text.assemble((key, "bold reverse"), f" {_key_label(key, text, view)}"), rank=rank
        )
        for key, text, rank in _KEYS
    ]
    if place:
        pieces.append(LinePiece.of(place, "dim", rank=1))
    if view.paused:
        pieces.insert(0, LinePiece.of("PAUSED", "bold yellow"))
    return fit(pieces, width, glyphs.more)


def help_lines(width: int, glyphs: Glyphs) -> list[Text]:
    """Return the list of all keys."""
    lines = [Text("allranks top", "bold"), Text()]
    lines += [Text.assemble((f"{key:<11}", "bold"), text) for key, text in HELP]
    lines += [
        Text(),
        Text("STEP     a step of that rank; COMPUTE its forward, backward and optimizer"),
        Text("WAIT     what it waits for other ranks and the network"),
        Text("straggler: a rank whose own work takes much longer than the others'"),
    ]
    return [cut(line, width, glyphs.more) for line in lines]


def _key_label(key: str, text: str, view: ViewSettings) -> str:
    if key == "s" and view.slowest:
        return "in order"
    return "resume" if key == "p" and view.paused else text
