"""The sizes of a study: ``1,2,4`` or ``1-4``, the option that varies, and placeholders in arguments.

``{ranks}`` and ``{nodes}`` are numbers, ``{share:256}`` is 256 divided by the ranks (a global batch of 256
as each rank's part) and ``{times:32}`` is 32 times the ranks (32 of each rank as a global batch).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from allranks.errors import UsageError

_PART = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)
_TYPED = re.compile(r"(?:(?P<type>[A-Za-z][\w.-]*):)?(?P<sizes>[\d,\s-]*)", re.ASCII)
MOST = 64
"""Sizes in one study: more are a typing mistake."""


@dataclass(frozen=True)
class SizeAxis:
    """The quantity that varies between points."""

    field: str
    """The field of the job that it sets."""
    option: str
    one: str
    many: str
    short: str
    """The title of its column, and the word in a run's name."""

    def count(self, size: int) -> str:
        """Format a size: ``1 node``, ``4 nodes``."""
        return f"{size} {self.one if size == 1 else self.many}"


AXES = {
    "nodes": SizeAxis("nodes", "--nodes", "node", "nodes", "nodes"),
    "nprocs": SizeAxis("nprocs", "--procs", "process", "processes", "procs"),
    "gpus_per_node": SizeAxis(
        "gpus_per_node", "--gpus-per-node", "GPU per node", "GPUs per node", "gpus"
    ),
}


@dataclass(frozen=True)
class SizeChoice:
    """The axis that varies, its sizes, and all other values."""

    axis: SizeAxis
    sizes: list[int]
    values: dict[str, Any]
    gpu_type: str = ""
    """Of ``--gpus-per-node A100:1,2,4``."""


def parse_sizes(text: str) -> list[int]:
    """Return the numbers in ``1,2,4`` or ``1-4``, sorted, each once."""
    found: set[int] = set()
    for part in text.replace(" ", "").split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise UsageError(f"'{text}' is not a list of sizes. Write 1,2,4 or 1-4.")
        low, high = int(match[1]), int(match[2] or match[1])
        if not 1 <= low <= high:
            raise UsageError(f"'{part}' is not a size of at least 1, or a range such as 1-4.")
        found |= set(range(low, min(high, low + MOST) + 1))
        if len(found) > MOST:
            raise UsageError(
                f"'{text}' are more than {MOST} sizes. Write those that matter: 1,2,4,8."
            )
    return sorted(found)


def choose_axis(values: Mapping[str, Any]) -> SizeChoice:
    """Choose the option with several sizes; those with one are values of every point."""
    kept = {name: value for name, value in values.items() if name not in AXES}
    lists: dict[str, list[int]] = {}
    types: dict[str, str] = {}
    for name in AXES.keys() & values.keys():
        match = _TYPED.fullmatch(str(values[name]).strip().removeprefix("gpu:"))
        if match is None or (match["type"] and name != "gpus_per_node"):
            raise UsageError(
                f"{AXES[name].option} {values[name]}: not a list of sizes. Write 1,2,4 or 1-4."
            )
        lists[name] = parse_sizes(match["sizes"])
        types[name] = match["type"] or ""
    axis = _varied_axis(lists)
    kept |= {name: values[name] for name in lists if name != axis.field}
    if axis.field == "nodes" and "nprocs" in kept:
        raise UsageError(
            f"--procs {kept['nprocs']} would be the same number of ranks on every number of nodes.\n"
            "Give the ranks of a node instead: --gpus-per-node N, or --tasks-per-node N without GPUs."
        )
    return SizeChoice(axis, lists[axis.field], kept, types[axis.field])


def _varied_axis(lists: Mapping[str, list[int]]) -> SizeAxis:
    several = [AXES[name] for name in AXES if len(lists.get(name, ())) > 1]
    if len(several) == 1:
        return several[0]
    if several:
        named = " and ".join(axis.option for axis in several)
        raise UsageError(f"{named} both have several sizes. A study varies one of them.")
    single = next((AXES[name] for name in AXES if name in lists), None)
    if single is None:
        raise UsageError(
            "Which sizes? On this machine: --procs 1,2,4; on Slurm: --nodes 1,2,4 or "
            "--gpus-per-node 1,2,4."
        )
    size = lists[single.field][0]
    more = f"1,{size}" if size > 1 else "1,2,4"
    raise UsageError(
        f"{single.option} {size} is one size; scaling needs several.\n"
        f"Give several: {single.option} {more}"
    )


_PLACEHOLDER = re.compile(r"\{(ranks|nodes|(?:share|times):[^{}]*)\}")


def fill_placeholders(words: Iterable[str], *, ranks: int, nodes: int) -> tuple[str, ...]:
    """Return the words with their placeholders replaced."""
    return tuple(
        _PLACEHOLDER.sub(lambda place: _value(place[1], ranks, nodes), word) for word in words
    )


def implied_kind(words: Iterable[str]) -> str | None:
    """Return strong for ``{share:…}``, weak for ``{times:…}``, None without or with both."""
    places = [place.partition(":")[0] for word in words for place in _PLACEHOLDER.findall(word)]
    kinds = {"strong" for place in places if place == "share"}
    kinds |= {"weak" for place in places if place == "times"}
    return kinds.pop() if len(kinds) == 1 else None


def _value(place: str, ranks: int, nodes: int) -> str:
    if place in ("ranks", "nodes"):
        return str(ranks if place == "ranks" else nodes)
    how, _, number = place.partition(":")
    if not re.fullmatch(r"[0-9]+", number) or int(number) == 0:
        raise UsageError(
            f"{{{place}}}: write a whole number after the colon, such as {{{how}:256}}."
        )
    if how == "times":
        return str(int(number) * ranks)
    if int(number) % ranks:
        low = int(number) // ranks * ranks
        near = f"{low} or {low + ranks}" if low else f"{ranks}"
        raise UsageError(f"{{{place}}}: {number} cannot be divided by {ranks} ranks; {near} can.")
    return str(int(number) // ranks)
