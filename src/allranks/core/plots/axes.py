"""Axes: round ticks on linear, logarithmic and time axes, their texts, and the way to pixels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

_SUFFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_LARGE, _SMALL = 1e300, 1e-300
"""Beyond these sums and quotients overflow; no picture needs them."""
_TIMES = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400,
    172800, 604800, 1209600,
)  # fmt: skip
"""Steps of a time axis, in seconds."""


@dataclass(frozen=True)
class Axis:
    """A range of values on a range of pixels, with its ticks."""

    low: float
    high: float
    start: float
    end: float
    ticks: Sequence[float] = ()
    texts: Sequence[str] = ()
    log: bool = False

    def at(self, value: float) -> float:
        """Return the position of a value in pixels."""
        low, high, here = self.low, self.high, clipped(value)
        if self.log:
            low, high, here = math.log10(low), math.log10(high), math.log10(here)
        share = (here - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)


def usable(value: float | None, log: bool = False) -> bool:
    """Return whether a value can be drawn: finite, and above 0 on a logarithmic axis."""
    return value is not None and math.isfinite(value) and (not log or value >= _SMALL)


def clipped(value: float) -> float:
    """Return the number, limited to what can be computed with."""
    return 0.0 if abs(value) < _SMALL else min(max(value, -_LARGE), _LARGE)


def linear(values: Iterable[float], start: float, end: float, *, zero: bool = False) -> Axis:
    """Return an axis whose first and last ticks enclose all values; ``zero``: it begins at 0."""
    low, high = _span(values, zero)
    marks = ticks(low, high, _most(start, end))
    return Axis(min(marks[0], low), max(marks[-1], high), start, end, marks, tick_texts(marks))


def tight(values: Iterable[float], start: float, end: float) -> Axis:
    """Return an axis that ends where the values do, for steps and times, where a margin would mislead."""
    low, high = _span(values, False)
    if low == high:
        return Axis(low - 1, high + 1, start, end, [low], [compact(low)])
    marks = [tick for tick in ticks(low, high, _most(start, end, 90)) if low <= tick <= high]
    return Axis(low, high, start, end, marks, tick_texts(marks))


def logarithmic(values: Iterable[float], start: float, end: float) -> Axis:
    """Return a logarithmic axis; a few given values (1, 2, 4, 8 nodes) are its ticks."""
    own = sorted({clipped(value) for value in values if usable(value, log=True)}) or [1.0]
    low, high = own[0], own[-1]
    if len(own) <= _most(start, end, 60) and abs(end - start) / len(own) > 24:
        marks = own
    else:
        marks = log_ticks(low, high)
        low, high = min(marks[0], low), max(marks[-1], high)
    if low == high:
        low, high = low / 2, high * 2
    return Axis(low, high, start, end, marks, [compact(mark) for mark in marks], log=True)


def with_ticks(axis: Axis, values: Iterable[float], marks: Sequence[float]) -> Axis:
    """Return the axis with the caller's ticks, as long as they and the values need."""
    spread = [*values, *marks]
    return replace(
        axis,
        low=min(spread),
        high=max(spread),
        ticks=marks,
        texts=[compact(mark) for mark in marks],
    )


def time_axis(seconds: Iterable[float], start: float, end: float) -> Axis:
    """Return an axis of elapsed seconds, in minutes, hours or days."""
    low, high = _span(seconds, False)
    high = high if high > low else low + 1
    most = _most(start, end, 90)
    step = next((one for one in _TIMES if (high - low) / one <= most), None)
    if step is None:
        step = math.ceil((high - low) / most / 604800) * 604800
    first, last = math.ceil(low / step), math.floor(high / step)
    marks = [float(place * step) for place in range(first, last + 1)]
    return Axis(low, high, start, end, marks, [duration(mark) for mark in marks])


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Return at most about ``most`` round numbers that cover the range."""
    low, high = clipped(low), clipped(high)
    span = (high - low) or abs(high) or 1.0
    size = 10.0 ** math.floor(math.log10(span / most))
    step = next(size * factor for factor in (1, 2, 5, 10) if span / (size * factor) <= most)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    marks = [place * step for place in range(first, last + 1)]
    digits = max(0, 2 - math.floor(math.log10(step)))
    return [round(mark, digits) for mark in marks]


def log_ticks(low: float, high: float) -> list[float]:
    """Return powers of ten; over less than two of them also their double and fivefold."""
    low, high = max(clipped(low), _SMALL), max(clipped(high), _SMALL)
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    stride = max(1, math.ceil((last - first) / 7))
    if last - first <= 2:
        fine = [factor * 10.0**power for power in range(first, last + 1) for factor in (1, 2, 5)]
        return [mark for mark in fine if low * 0.49 <= mark <= high * 2.1] or [low]
    return [10.0 ** min(power, 300) for power in range(first, last + stride, stride)]


def tick_texts(marks: Sequence[float]) -> list[str]:
    """Return the labels of one axis, all with as many decimals as its step needs."""
    largest = max((abs(mark) for mark in marks), default=0.0)
    if largest >= 10000 or 0 < largest < 1e-3 or len(marks) < 2:
        return [compact(mark) for mark in marks]
    step = min(abs(b - a) for a, b in pairwise(marks)) or 1.0
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return [f"{mark:.{decimals}f}" for mark in marks]


def compact(value: float) -> str:
    """Format a number in few letters: ``1.5k``, ``20M``, ``0.25``, ``3e-5``."""
    for size, suffix in _SUFFIXES:
        if abs(value) >= size and (size > 1e3 or abs(value) >= 10000):
            return f"{value / size:.3g}{suffix}"
    if 0 < abs(value) < 1e-3:
        digits, _, power = f"{value:.2e}".partition("e")
        return f"{float(digits):g}e{int(power)}"
    return f"{value:.4g}"


def duration(seconds: float) -> str:
    """Format seconds: ``45 s``, ``10 min``, ``1 h 30``, ``2 d``."""
    whole = round(seconds)
    if whole == 0 or whole % 60:
        return f"{whole // 60}:{whole % 60:02} min" if whole > 60 else f"{whole} s"
    minutes = whole // 60
    if minutes < 60:
        return f"{minutes} min"
    hours, minute = divmod(minutes, 60)
    if minute:
        return f"{hours} h {minute:02}"
    return f"{hours // 24} d" if hours % 24 == 0 else f"{hours} h"


def _span(values: Iterable[float], zero: bool) -> tuple[float, float]:
    known = [clipped(value) for value in values if usable(value)] + ([0.0] if zero else [])
    return (min(known), max(known)) if known else (0.0, 1.0)


def _most(start: float, end: float, pixels: float = 40) -> int:
    """Return how many ticks fit."""
    return max(2, int(abs(end - start) / pixels))


Make = Callable[[Iterable[float], float, float], Axis]
"""What makes an axis of values on a range of pixels."""
