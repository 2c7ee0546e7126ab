"""Values out of JSON as numbers: whatever else stands there is not known."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from datetime import datetime
from typing import Any

ABSENT = float("nan")


def number_or_nan(value: object) -> float:
    """Return a finite number, else NaN, as arrays need it."""
    if not isinstance(value, (int, float)):
        return ABSENT
    try:
        return float(value) if math.isfinite(value) else ABSENT
    except OverflowError:
        return ABSENT


def finite_array(kind: str, values: Sequence[Any]) -> array[float]:
    """Return the values as an array of ``f`` or ``d``, NaN where there is no finite number."""
    try:
        made = array(kind, values)
        if all(map(math.isfinite, made)):
            return made
    except (TypeError, OverflowError):
        pass
    return array(kind, [number_or_nan(each) for each in values])


def finite_number(value: object) -> float | None:
    """Return a finite number, else None."""
    found = number_or_nan(value)
    return None if found != found else found


def whole_number(value: object) -> int | None:
    """Return a finite number without its fraction, else None."""
    found = finite_number(value)
    return None if found is None else int(found)


def unix_seconds(moment: datetime | None) -> float | None:
    """Return seconds since 1970; a time without a zone is local."""
    return moment.timestamp() if moment else None
