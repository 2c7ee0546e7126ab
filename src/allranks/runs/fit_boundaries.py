"""Where one training ends and another begins: a script may train several times in one run."""

from __future__ import annotations


class Fits:
    """Goes over lines of training steps: which fit they are of, and where another one begins.

    Its number changes there, or the steps fall: lines of older runs have no number.
    """

    def __init__(self) -> None:
        self._last: tuple[float, float] | None = None
        self.number: float = 1
        """Of the fit that the last line is of."""

    def begins(self, step: float | None, fit: float | None = None) -> bool:
        """Whether the line of this step is the first of another fit."""
        if step is None:
            return False
        before, self._last = self._last, (fit or 1.0, step)
        begun = before is not None and (self._last[0] != before[0] or step < before[1])
        self.number = fit or self.number + begun
        return begun
