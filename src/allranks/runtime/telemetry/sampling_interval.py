"""How often a node is sampled: soon, then often, then as often as a long run needs it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from allranks.runtime.telemetry import switched_off

VARIABLE = "ALLRANKS_SAMPLE"
_FIRST = 1.0
_OFTEN, _OFTEN_UNTIL = 5.0, 600.0
_LATER = 15.0
_SHORTEST, _LONGEST = 0.2, 86400.0


class Pace(NamedTuple):
    """When the next sample is due."""

    every: float | None = None
    """Seconds that the user asked for."""

    def next(self, last: float, began: float) -> float:
        """After a sample at ``last``; the first look was at ``began``."""
        if last == began:
            return began + min(_FIRST, self.every or _FIRST)
        if self.every is not None:
            return last + self.every
        return last + (_OFTEN if last - began < _OFTEN_UNTIL else _LATER)


def read_pace(env: Mapping[str, str], say: Callable[[str], None] | None) -> Pace | None:
    """From ALLRANKS_SAMPLE: ``off``, or seconds (``5`` or ``5s``); None when it is off."""
    text = env.get(VARIABLE, "").strip().lower()
    if switched_off(text):
        return None
    if not text:
        return Pace()
    try:
        seconds = float(text.removesuffix("s"))
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= _LONGEST:
        if say:
            say(
                f"{VARIABLE}={text} is neither off nor a number of seconds up to a day: "
                "nodes are sampled as usual"
            )
        return Pace()
    return Pace(max(seconds, _SHORTEST))
