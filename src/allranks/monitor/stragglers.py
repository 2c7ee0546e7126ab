"""Ranks that the others wait for.

A step ends for all ranks at the same time, so a slow rank shows in its own work: loading data and
computing take it longer than the median rank, while the others wait for it in communication.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from allranks.monitor.numbers import real

BEHIND = 0.2
"""A straggler's own work takes longer than the median rank's by more than this share …"""
LEAST_SECONDS = 0.001
"""… and by more than this: steps of a millisecond are uneven by nature …"""
WINDOWS = 5
"""… in most of the last so many windows: a single slow one is a checkpoint or a hiccup."""
_OFTEN = 3


def own_work(window: Mapping[str, Any]) -> list[float | None]:
    """Seconds per step of each rank's own work: data and computing; None where it is not known."""
    computing, data = window.get("compute_seconds"), window.get("data_seconds")
    if not isinstance(computing, list):
        return []
    loads = data if isinstance(data, list) and len(data) == len(computing) else [0] * len(computing)
    return [
        None if (mine := real(each)) is None else mine + (real(load) or 0.0)
        for each, load in zip(computing, loads, strict=True)
    ]


def behind(window: Mapping[str, Any]) -> list[float | None]:
    """By which share each rank is slower than the median one in a window; 0.3 is 30 %."""
    work = own_work(window)
    middle = _median(work)
    return [None if each is None or not middle else each / middle - 1 for each in work]


def stragglers(windows: Sequence[Mapping[str, Any]]) -> list[int]:
    """The ranks that stayed behind in at least 3 of the last 5 windows; in all when there are fewer."""
    recent = [own_work(window) for window in windows[-WINDOWS:]]
    needed = min(_OFTEN, len(recent))
    counts = Counter(rank for work in recent for rank in _late(work))
    return sorted(rank for rank, count in counts.items() if count >= needed)


def _late(work: list[float | None]) -> list[int]:
    middle = _median(work)
    if not middle:
        return []
    limit = middle + max(BEHIND * middle, LEAST_SECONDS)
    return [rank for rank, each in enumerate(work) if each is not None and each > limit]


def _median(work: list[float | None]) -> float | None:
    """Of those that are known; a rank alone has nobody to be compared with."""
    known = [each for each in work if each is not None]
    return median(known) if len(known) > 1 else None
