"""The live view: draw, wait for a key or for news, draw again."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace

from rich.console import Console
from rich.text import Text

from allranks.observe.top.frame import frame
from allranks.observe.top.terminal import Terminal
from allranks.observe.top.text_bars import Glyphs, glyphs_for
from allranks.observe.top.view_settings import ViewSettings
from allranks.observe.top.watcher import Watcher
from allranks.observe.view.model import RunView
from allranks.runs.run import Run

EVERY = 2.0
"""Seconds between two pictures."""
PAGE = 120
"""Columns where there is no terminal: nothing has to leave for want of room."""


def live() -> bool:
    """Whether there is a terminal that a picture can be redrawn on."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb")


def watch(run: Run, every: float = EVERY, task: str | None = None) -> None:
    """Show a run until the user has seen enough; the run itself is not touched."""
    console = Console(highlight=False)
    glyphs = glyphs_for(console.encoding)
    try:
        with Terminal(console) as terminal:
            watcher = Watcher(run, every, terminal.wake, task)
            watcher.start()
            try:
                _loop(terminal, watcher, run, glyphs)
            finally:
                watcher.stop()
    except KeyboardInterrupt:
        return  # the usual way to leave such a view; it ends nothing


def _loop(terminal: Terminal, watcher: Watcher, run: Run, glyphs: Glyphs) -> None:
    view, shown = ViewSettings(), None
    terminal.draw([Text(f"reading {run.id} {glyphs.more}", "dim")])
    while not view.quit:
        for key in terminal.wait():
            view = view.after(key)
        if watcher.error is not None:
            raise watcher.error
        if not view.paused or shown is None:
            shown = watcher.snapshot
        if shown is not None and not view.quit:
            view = _draw(terminal, shown, view, glyphs)


def _draw(
    terminal: Terminal, snapshot: RunView, view: ViewSettings, glyphs: Glyphs
) -> ViewSettings:
    """The picture; the view comes back with the rows that it really shows."""
    width, height = terminal.screen.size()
    made = frame(snapshot, width, height, view, glyphs)
    terminal.draw(made.lines)
    if view.help:
        return view
    return replace(view, first=made.first, page=max(made.shown, 1))


def page(snapshot: RunView) -> None:
    """Print one picture with every row, as for a file or a pipe."""
    console = Console(highlight=False, width=shutil.get_terminal_size((PAGE, 24)).columns)
    made = frame(snapshot, console.width, glyphs=glyphs_for(console.encoding))
    for line in made.lines:
        console.print(_encodable(line, console.encoding), soft_wrap=True)


def _encodable(line: Text, encoding: str) -> Text:
    """What the output cannot take becomes a question mark instead of an error."""
    plain = line.plain.encode(encoding, "replace").decode(encoding)
    if plain == line.plain:
        return line
    return Text(plain, line.style, spans=line.spans)
