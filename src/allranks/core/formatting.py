"""Format numbers and texts for people, the same in every view: few digits, a unit, no control characters."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.?)")
_UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
_COUNTS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_RATES = ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1, "B/s"))
_SIZES = ((2**50, "PiB"), (2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))


def clean(text: str) -> str:
    """Return one line without control characters, colours and text direction: names and logs are untrusted."""
    return _UNSEEN.sub("", _ESCAPES.sub("", text.replace("\t", "    ")))


def one_line(text: str) -> str:
    """Return a text as one line, for a heading, a cell of a table or the middle of a sentence."""
    return clean(" ".join(text.split())).strip()


def clean_lines(text: str) -> str:
    """Return a text with each of its lines cleaned."""
    return "\n".join(map(clean, text.split("\n")))


def clock(seconds: float) -> str:
    """Format a running time: ``1:02:03``; with days from two days on: ``3d 04:05:06``."""
    if not math.isfinite(seconds):
        return ""
    minutes, second = divmod(max(int(seconds), 0), 60)
    hours, minute = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24}d {hours % 24:02}:{minute:02}:{second:02}"
    return f"{hours}:{minute:02}:{second:02}"


def span(seconds: float) -> str:
    """Format a duration: ``45 s``, ``2 min 30 s``, ``12 min``, ``2 h 05 min``, ``3 d 4 h``."""
    if not math.isfinite(seconds):
        return ""
    if seconds < 119.5:
        return f"{max(seconds, 0.0):.0f} s"
    if seconds < 599.5:
        minute, second = divmod(round(seconds), 60)
        return f"{minute} min {second:02} s" if second else f"{minute} min"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minute = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minute:02} min" if minute else f"{hours} h"
    days, hour = divmod(hours, 24)
    return f"{days} d {hour} h" if hour else f"{days} d"


def step_time(seconds: float | None) -> str:
    """Format the time of a step: ``1.24 s``, ``213 ms``, ``62 µs``; from ten minutes on as a duration."""
    if seconds is None or not math.isfinite(seconds):
        return ""
    if seconds >= 599.5:
        return span(seconds)
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if seconds * factor >= 0.9995:
            return f"{three(seconds * factor)} {unit}"
    return f"{seconds * 1e6:.0f} µs" if seconds > 0 else "0 ms"


def amount(number: float) -> str:
    """Format a count or a rate: ``640``, ``12.3k``, ``1.25M``."""
    if not math.isfinite(number):
        return _beyond(number)
    for factor, unit in _COUNTS:
        if abs(number) >= factor * (9.9995 if unit == "k" else 0.9995):
            return f"{three(number / factor)}{unit}"
    return three(number)


def size(count: float | None) -> str:
    """Format bytes: ``61.2 GiB``, ``640 MiB``."""
    return _in_units(count, _SIZES, " ")


def rate(per_second: float | None, gap: str = " ") -> str:
    """Format bytes per second, in powers of ten as networks and disks are sold: ``2.13 GB/s``."""
    return _in_units(per_second, _RATES, gap)


def _in_units(number: float | None, units: Sequence[tuple[float, str]], gap: str) -> str:
    """Format a number in the largest unit that it reaches; in whole numbers of the smallest."""
    if number is None or not math.isfinite(number):
        return ""
    for factor, unit in units[:-1]:
        if abs(number) >= factor * 0.9995:
            return f"{three(number / factor)}{gap}{unit}"
    return f"{number:.0f}{gap}{units[-1][1]}"


def percent(share: float | None, gap: str = " ") -> str:
    """Format a share: ``34 %``; ``<1 %`` for little but not nothing, and 100 only for all of it."""
    if share is None or not math.isfinite(share):
        return ""
    if 0 < share < 0.005:
        return f"<1{gap}%"
    return f"{99 if 0.99 < share < 1 else share * 100:.0f}{gap}%"


def value(number: float) -> str:
    """Format a metric: ``0.4312``, ``2.97e-04``, ``NaN``."""
    if not math.isfinite(number):
        return _beyond(number)
    if number == 0:
        return "0"
    if abs(number) < 1e-3 or abs(number) >= 999_999.5:
        return f"{number:.2e}"
    if abs(number) >= 9999.5:
        return f"{number:.0f}"
    return f"{number:.4g}" if abs(number) >= 1 else f"{number:.4f}"


def _beyond(number: float) -> str:
    """Format a number that is not finite: ``NaN``, ``inf``, ``-inf``."""
    return "NaN" if math.isnan(number) else f"{number:g}"


def three(number: float) -> str:
    """Format a number with at most three digits: ``412``, ``13.7``, ``0.31``, ``2``, ``0.004``."""
    if abs(number) >= 99.95:
        return f"{number:.0f}"
    if abs(number) < 0.00995:
        return f"{number + 0:.2g}"  # a zero without a sign
    text = f"{number:.1f}" if abs(number) >= 9.995 else f"{number:.2f}"
    return text.rstrip("0").rstrip(".")
