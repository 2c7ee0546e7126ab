"""What was measured over one attempt, row by row: the material of a heat map."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from allranks.observe.view.node_views import gpu_of_ranks
from allranks.observe.view.run_source import AttemptSource, NodeSource
from allranks.observe.view.sampled_lines import GPU_VALUES
from allranks.runs.metrics_tables import RANK_LISTS

_WIDTH = 1 + len(GPU_VALUES)
_Owners = dict[tuple[int, int], list[int]]


@dataclass
class Track:
    """Lines of one file: ``values[i]`` of each belongs to ``rows[i]``; NaN where nothing is known."""

    rows: list[str]
    lines: list[tuple[float, Sequence[float]]] = field(default_factory=list)
    """(time, values), in order."""


def tracks(attempt: AttemptSource, name: str) -> list[Track]:
    """By the name of what was measured, as the files have it: ``use``, ``cpu``, ``step_seconds``."""
    if name in RANK_LISTS:
        found = _ranks(attempt, RANK_LISTS.index(name))
    elif name == "cpu":
        found = _nodes(attempt)
    else:
        found = _gpus(attempt, GPU_VALUES.index(name))
    return [track for track in found if track.rows and track.lines]


def _ranks(attempt: AttemptSource, place: int) -> list[Track]:
    by_size: dict[int, Track] = {}
    for time, values in attempt.windows().lines():
        size = len(values) // len(RANK_LISTS)
        if size not in by_size:
            by_size[size] = Track([f"rank {rank}" for rank in range(size)])
        by_size[size].lines.append((time, values[place * size : (place + 1) * size]))
    return list(by_size.values())


def _nodes(attempt: AttemptSource) -> list[Track]:
    return [
        Track([node.host], [(time, values[:1]) for time, values in _own_lines(attempt, node)])
        for node in attempt.nodes.values()
    ]


def _own_lines(attempt: AttemptSource, node: NodeSource) -> list[tuple[float, Sequence[float]]]:
    return list(attempt.samples(node.node, min(node.files)).lines())


def _gpus(attempt: AttemptSource, place: int) -> list[Track]:
    owners: _Owners = {}
    for rank, where in gpu_of_ranks(attempt).items():
        owners.setdefault(where, []).append(rank)
    return [
        track
        for node in attempt.nodes.values()
        for local_rank in node.files
        for track in _gpu_file(attempt, node, local_rank, place, owners)
    ]


def _gpu_file(
    attempt: AttemptSource, node: NodeSource, local_rank: int, place: int, owners: _Owners
) -> list[Track]:
    """A track for each set of GPUs that the file has told of: one, unless some came or went."""
    made: dict[bytes, tuple[Track, list[int]]] = {}
    for time, values in attempt.samples(node.node, local_rank).lines():
        numbers = values[1::_WIDTH]
        key = numbers.tobytes()
        if key not in made:
            named = [
                (slot, row)
                for slot, number in enumerate(numbers)
                for row in _rows(owners, node, int(number))
            ]
            made[key] = Track([row for _, row in named]), [slot for slot, _ in named]
        track, slots = made[key]
        found = values[2 + place :: _WIDTH]
        track.lines.append((time, [found[slot] for slot in slots]))
    return [track for track, _ in made.values()]


def _rows(owners: _Owners, node: NodeSource, gpu: int) -> list[str]:
    """The ranks on a GPU; GPUs that no rank uses are left out as soon as any rank's is known."""
    if not owners:
        return [f"{node.host} GPU {gpu}"]
    return [f"rank {rank}" for rank in owners.get((node.node, gpu), ())]
