"""Placeholders in a script's arguments: what of them depends on the size of a point.

``{ranks}`` and ``{nodes}`` are numbers, ``{share:256}`` is 256 divided by the ranks (a global batch of 256
as each rank's part) and ``{times:32}`` is 32 times the ranks (32 of each rank as a global batch).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from allranks.errors import UsageError

_PLACE = re.compile(r"\{(ranks|nodes|(?:share|times):[^{}]*)\}")


def fill(words: Iterable[str], *, ranks: int, nodes: int) -> tuple[str, ...]:
    """The words with their placeholders replaced."""
    return tuple(_PLACE.sub(lambda place: _value(place[1], ranks, nodes), word) for word in words)


def implied_kind(words: Iterable[str]) -> str | None:
    """A share of a fixed whole is strong scaling, a multiple is weak; None when neither is there."""
    places = [place.partition(":")[0] for word in words for place in _PLACE.findall(word)]
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
