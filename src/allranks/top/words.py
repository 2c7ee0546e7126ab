"""Sizes and shares for the columns of a narrow terminal, shorter than they are elsewhere."""

from __future__ import annotations

import math

from allranks.wording import three

_SIZES = ("B", "K", "M", "G", "T", "P")


def size(count: float | None) -> str:
    """Bytes in steps of 1024: ``61.2G``."""
    if count is None or not math.isfinite(count):
        return ""
    number, unit = float(count), 0
    while abs(number) >= 999.5 and unit < len(_SIZES) - 1:
        number, unit = number / 1024, unit + 1
    return f"{three(number)}{_SIZES[unit]}"


def memory(used: float | None, total: float | None) -> str:
    """``61.2/80G``: both in the unit of the whole."""
    if used is None:
        return ""
    if not total:
        return size(used)
    unit = min(int(math.log(max(total, 1), 1024)), len(_SIZES) - 1)
    factor = 1024**unit
    part = f"{used / factor:.0f}" if used / factor >= 99.5 else f"{used / factor:.1f}"
    return f"{part}/{total / factor:.0f}{_SIZES[unit]}"


def percent(share: float | None) -> str:
    """``97%``."""
    return "" if share is None or not math.isfinite(share) else f"{share * 100:.0f}%"
