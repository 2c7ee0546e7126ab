"""Find stragglers: the ranks that the others wait for.

A step ends for all ranks at the same time, so a slow rank shows in its own work: loading data and
computing take it longer than the median of the others, who wait for it in communication.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from allranks.core.json_numbers import finite_number

BEHIND = 0.2
"""A straggler's own work takes longer than the median of the others by more than this share …"""
LEAST_SECONDS = 0.001
"""… and by more than this: steps of a millisecond are uneven by nature …"""
WINDOWS = 5
"""… in most of this many last windows: a single slow one is a checkpoint or a hiccup."""
_OFTEN = 3


def own_work(window: Mapping[str, Any]) -> list[float | None]:
    """Return the seconds per step of each rank's own work, data and computing; None when unknown."""
    computing, data = window.get("compute_seconds"), window.get("data_seconds")
    if not isinstance(computing, list):
        return []
    loads = data if isinstance(data, list) and len(data) == len(computing) else [0] * len(computing)
    return [
        None if (mine := finite_number(each)) is None else mine + (finite_number(load) or 0.0)
        for each, load in zip(computing, loads, strict=True)
    ]


def behind_shares(window: Mapping[str, Any]) -> list[float | None]:
    """Return by which share each rank is slower than the median of the others; 0.3 is 30 %."""
    work = own_work(window)
    return [
        None if mine is None or not usual else mine / usual - 1
        for mine, usual in zip(work, _others(work), strict=True)
    ]


def late_ranks(work: Sequence[float | None]) -> list[int]:
    """Return the ranks that the others wait for in one window, by their own work."""
    return [
        rank
        for rank, (mine, usual) in enumerate(zip(work, _others(work), strict=True))
        if mine is not None and usual and mine > usual + max(BEHIND * usual, LEAST_SECONDS)
    ]


def median_behind(windows: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    """Return the median share of each rank over the last 5 windows; of a straggler over its late ones."""
    shares: dict[int, list[float]] = {}
    for window in windows[-WINDOWS:]:
        for rank, share in enumerate(behind_shares(window)):
            if share is not None:
                shares.setdefault(rank, []).append(share)
    return {rank: median(found) for rank, found in shares.items()}


def find_stragglers(windows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the ranks that were late in at least 3 of the last 5 windows."""
    recent = [own_work(window) for window in windows[-WINDOWS:]]
    counts = Counter(rank for work in recent for rank in late_ranks(work))
    return sorted(rank for rank, count in counts.items() if count >= _OFTEN)


def _others(work: Sequence[float | None]) -> list[float | None]:
    """Return for each rank the median of all others; None for a single rank.

    The median of all would be half the rank's own where there are two.
    """
    known = sorted(each for each in work if each is not None)
    return [None if each is None else _median_without(known, each) for each in work]


def _median_without(known: list[float], mine: float) -> float | None:
    """Return the median of sorted values without one as large as mine."""
    rest, place = len(known) - 1, bisect_left(known, mine)
    if not rest:
        return None
    low, high = (rest - 1) // 2, rest // 2
    return (known[low + (low >= place)] + known[high + (high >= place)]) / 2
