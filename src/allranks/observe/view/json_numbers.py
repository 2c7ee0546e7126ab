"""Values out of JSON as numbers: whatever else stands there is not known."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from datetime import datetime
from typing import Any

ABSENT = float("nan")


def number(value: object) -> float:
    """A finite number, else NaN: for places in an array."""
    if not isinstance(value, (int, float)):
        return ABSENT
    try:
        return float(value) if math.isfinite(value) else ABSENT
    except OverflowError:
        return ABSENT


def finite(kind: str, values: Sequence[Any]) -> array[float]:
    """Values as an array of ``f`` or ``d``, NaN where there is no finite number."""
    try:
        made = array(kind, values)
        if all(map(math.isfinite, made)):
            return made
    except (TypeError, OverflowError):
        pass
    return array(kind, [number(each) for each in values])


def real(value: object) -> float | None:
    """A finite number, else None."""
    found = number(value)
    return None if found != found else found


def whole(value: object) -> int | None:
    """A finite number without its fraction, else None."""
    found = real(value)
    return None if found is None else int(found)


def seconds(moment: datetime | None) -> float | None:
    """Since 1970; a time without a zone is a local one."""
    return moment.timestamp() if moment else None
