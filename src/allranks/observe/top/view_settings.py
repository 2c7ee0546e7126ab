"""What the user chose to see, and how a key changes it."""

from __future__ import annotations

from dataclasses import dataclass, replace

HELP = (
    ("q", "quit; the run goes on"),
    ("r  n", "a row per rank, or per node"),
    ("s", "slowest first, or in order"),
    ("up down", "scroll by a row (also k j)"),
    ("PgUp PgDn", "scroll by a page (also b, space)"),
    ("Home End", "the first row, the last row (also g G)"),
    ("p", "hold the picture still, or let it go on"),
    ("?", "this help; any key closes it"),
)
"""Keys and what they do, for the help and the documentation."""

_BY_ROW = {"up": -1, "k": -1, "down": 1, "j": 1}
_BY_PAGE = {"pageup": -1, "b": -1, "pagedown": 1, " ": 1}
_ENDS = {"home": 0, "g": 0, "end": 10**9, "G": 10**9}


@dataclass(frozen=True)
class ViewSettings:
    """The state of the screen that the run itself does not decide."""

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

    def after(self, key: str) -> ViewSettings:
        """The view once this key was pressed; unknown keys change nothing."""
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
