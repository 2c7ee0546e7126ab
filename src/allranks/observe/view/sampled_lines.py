"""Lines evenly spaced over a long file, each reduced to a few numbers: what a heat map is drawn from.

The distance between them is a power of two that only grows, so what was read stays of use while the file
grows, and a view that is drawn again reads only the new ones.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from typing import Any

from allranks.observe.view.json_numbers import ABSENT, finite, number
from allranks.runs.jsonl_tail import JsonlTail
from allranks.runs.metrics_tables import RANK_LISTS
from allranks.runs.node_samples import NodeSource

MOST = 480
GPU_VALUES = ("use", "memory", "power", "temperature")

Pick = Callable[[Mapping[str, Any]], "array[float]"]


class EvenSamples:
    """At most so many lines of a file (and the last one), as (time, numbers)."""

    def __init__(self, file: JsonlTail, pick: Pick, most: int = MOST) -> None:
        self._file = file
        self._pick = pick
        self._most = most
        self._kept: dict[int, tuple[float, array[float]]] = {}
        self._stride = 1
        self._version: tuple[int, int] = (0, 0)

    def refresh(self, version: int = 0) -> None:
        """Read what is missing; all anew when the file, or what ``version`` stands for, has changed."""
        if self._version != (self._file.generation, version):
            self._version = (self._file.generation, version)
            self._kept.clear()
            self._stride = 1
        size = len(self._file)
        while size > self._most * self._stride:
            self._stride *= 2
        wanted = dict.fromkeys([*range(0, size, self._stride), *range(max(size - 1, 0), size)])
        self._kept = {place: kept for place, kept in self._kept.items() if place in wanted}
        missing = [place for place in wanted if place not in self._kept]
        for place, row in zip(missing, self._file.at(missing), strict=False):
            self._kept[place] = (number(row.get("time")), self._pick(row))

    def __len__(self) -> int:
        return len(self._kept)

    def lines(self) -> list[tuple[float, array[float]]]:
        """In the order of the file; lines without a time are left out."""
        found = (self._kept[place] for place in sorted(self._kept))
        return [(time, values) for time, values in found if time == time]


def rank_samples(row: Mapping[str, Any]) -> array[float]:
    """The lists of a window one after the other, each as long as the longest."""
    lists = [row.get(name) for name in RANK_LISTS]
    size = max((len(each) for each in lists if isinstance(each, list)), default=0)
    values = array("f")
    for each in lists:
        found = finite("f", each) if isinstance(each, list) else array("f")
        values.extend(found)
        values.extend([ABSENT] * (size - len(found)))
    return values


def node_samples(source: NodeSource, local_rank: int, row: Mapping[str, Any]) -> array[float]:
    """Busy CPUs, then of each GPU its number and GPU_VALUES."""
    values = array("f", [number(row.get("cpu"))])
    for gpu, about in source.gpus_in(local_rank, row):
        values.append(number(gpu))
        values.extend(number(about.get(name)) for name in GPU_VALUES)
    return values
