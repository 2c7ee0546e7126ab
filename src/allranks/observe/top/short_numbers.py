"""Sizes and shares for the columns of a narrow terminal, shorter than they are elsewhere."""

from __future__ import annotations

from allranks.core import formatting as wording
from allranks.core.formatting import three

_SIZES = ("B", "K", "M", "G", "T", "P")


def memory(used: float | None, total: float | None) -> str:
    """``61.2/80G``, ``700/1536G``: both in the unit of 1024 steps in which the whole has two digits.

    A tenth of that unit is the least that is told of a part.
    """
    if used is None:
        return ""
    whole, unit = float(total or used), 0
    while whole >= (9.95 * 1024 if total else 999.5) and unit < len(_SIZES) - 1:
        whole, unit = whole / 1024, unit + 1
    if not total:
        return f"{three(whole)}{_SIZES[unit]}"
    return f"{three(round(used / 1024**unit, 1))}/{three(whole)}{_SIZES[unit]}"


def percent(share: float | None) -> str:
    """``97%``."""
    return wording.percent(share, gap="")
