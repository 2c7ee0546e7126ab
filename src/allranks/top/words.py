"""Numbers and texts as they stand in a terminal: short, and harmless to it."""

from __future__ import annotations

import math
import re

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.?)")
_UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
_SIZES = ("B", "K", "M", "G", "T", "P")


def clean(text: str) -> str:
    """Without what moves a cursor, colours or reverses: names and logs are other people's text."""
    return _UNSEEN.sub("", _ESCAPES.sub("", text.replace("\t", "    ")))


def clock(seconds: float) -> str:
    """``1:02:03``; with days from two days on: ``3d 04:05:06``."""
    whole = max(int(seconds), 0)
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24}d {hours % 24:02}:{minute:02}:{second:02}"
    return f"{hours}:{minute:02}:{second:02}"


def duration(seconds: float | None) -> str:
    """A time of a step: ``213 ms``, ``1.24 s``, ``62 us``; three digits are all that can be read."""
    if seconds is None or not math.isfinite(seconds):
        return ""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 0.9995:
            return f"{_three(seconds * factor)} {unit}"
    return f"{seconds * 1e6:.0f} us" if seconds > 0 else "0 ms"


def amount(number: float) -> str:
    """A count or rate: ``640``, ``12.3k``, ``1.25M``."""
    if not math.isfinite(number):
        return str(number)
    for unit, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(number) >= factor * 9.9995 or (unit != "k" and abs(number) >= factor * 0.9995):
            return f"{_three(number / factor)}{unit}"
    return _three(number)


def size(count: float | None) -> str:
    """Bytes in steps of 1024: ``61.2G``."""
    if count is None or not math.isfinite(count):
        return ""
    number, unit = float(count), 0
    while abs(number) >= 999.5 and unit < len(_SIZES) - 1:
        number, unit = number / 1024, unit + 1
    return f"{_three(number)}{_SIZES[unit]}"


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


def value(number: float) -> str:
    """A metric: ``0.4312``, ``2.97e-04``, ``nan``."""
    if not math.isfinite(number) or number == 0:
        return f"{number:g}"
    if abs(number) < 1e-3 or abs(number) >= 1e6:
        return f"{number:.2e}"
    return f"{number:.4g}" if abs(number) >= 1 else f"{number:.4f}"


def _three(number: float) -> str:
    """With three digits at most, ``0.0`` not being one."""
    if abs(number) >= 99.95 or number == int(number):
        return f"{number:.0f}"
    return f"{number:.1f}" if abs(number) >= 9.995 else f"{number:.2f}"
