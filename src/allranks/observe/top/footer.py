"""The lower part of the screen: the attempts, the error or the last lines, the keys."""

from __future__ import annotations

from collections import Counter

from rich.text import Text

from allranks.core.formatting import clean, clock
from allranks.observe.top.fitted_lines import LinePiece, cut, fit, wrapped
from allranks.observe.top.short_numbers import percent
from allranks.observe.top.text_bars import Glyphs
from allranks.observe.top.view_settings import HELP, ViewSettings
from allranks.observe.view.model import RunView
from allranks.runs.attempt import Failure

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


def attempts(snapshot: RunView, width: int, glyphs: Glyphs) -> Text | None:
    """How often it began, how those ended, and what the time was good for."""
    ended = [entry for entry in snapshot.attempts if entry.outcome != "running"]
    count = len(snapshot.attempts)
    pieces = []
    if count > 1:
        pieces.append(LinePiece.of(f"{count} attempts"))
        outcomes = Counter(entry.outcome for entry in ended)
        text = ", ".join(f"{number} {outcome}" for outcome, number in outcomes.items())
        pieces.append(LinePiece.of(clean(text), rank=2))
    total = snapshot.goodput
    # Rank 0 tells from time to time how far it is: until then a run that just began has done nothing.
    known = any(entry.first_step is not None for entry in ended) or (total and total.useful > 0)
    if total is not None and total.share is not None and known:
        pieces.append(LinePiece.of(f"goodput {percent(total.share)}", rank=1))
        told = f"{clock(total.useful)} of {clock(total.allocated)} moved the model forward"
        pieces.append(LinePiece.of(told, "dim", rank=3))
    return fit(pieces, width, glyphs.more) if pieces else None


def tail(snapshot: RunView, width: int, most: int, glyphs: Glyphs) -> list[Text]:
    """The error where there is one, else what the ranks wrote last."""
    if most <= 0:
        return []
    if snapshot.error is not None:
        return _error(snapshot.error, width, most, glyphs)
    lines = [clean(line) for line in snapshot.last_lines]
    kept = [line for line in lines if line.strip()][-most:]
    return [cut(Text(line, "dim"), width, glyphs.more) for line in kept]


def _error(failure: Failure, width: int, most: int, glyphs: Glyphs) -> list[Text]:
    """Who failed, and the end of its traceback; where that is a footer, the error before it."""
    where = f" on {clean(failure.host)}" if failure.host else ""
    head = Text(f"rank {failure.rank}{where} failed first: {clean(failure.how)}", "bold red")
    room = most - 1
    error, *trace = (
        wrapped(clean(line)[:_LONGEST], width, room, "red", glyphs.more)
        for line in (failure.error, *failure.traceback.splitlines()[-most:])
    )
    shown = _last([part for line in trace for part in line], room)
    if error and error[0] not in shown:
        shown = [*error, *_last(shown, room - len(error))]
    return [cut(head, width, glyphs.more), *shown]


def _last(lines: list[Text], most: int) -> list[Text]:
    return lines[max(len(lines) - most, 0) :]


def keys(view: ViewSettings, width: int, place: str, glyphs: Glyphs) -> Text:
    """The keys that work, and which rows are shown."""
    pieces = [
        LinePiece(Text.assemble((key, "bold reverse"), f" {_named(key, text, view)}"), rank=rank)
        for key, text, rank in _KEYS
    ]
    if place:
        pieces.append(LinePiece.of(place, "dim", rank=1))
    if view.paused:
        pieces.insert(0, LinePiece.of("PAUSED", "bold yellow"))
    return fit(pieces, width, glyphs.more)


def help_lines(width: int, glyphs: Glyphs) -> list[Text]:
    """The whole list of keys."""
    lines = [Text("allranks top", "bold"), Text()]
    lines += [Text.assemble((f"{key:<11}", "bold"), text) for key, text in HELP]
    lines += [
        Text(),
        Text("STEP     a step of that rank; COMPUTE its forward, backward and optimizer"),
        Text("WAIT     what it waits for other ranks and the network"),
        Text("straggler: a rank whose own work takes much longer than the others'"),
    ]
    return [cut(line, width, glyphs.more) for line in lines]


def _named(key: str, text: str, view: ViewSettings) -> str:
    if key == "s" and view.slowest:
        return "in order"
    return "go on" if key == "p" and view.paused else text
