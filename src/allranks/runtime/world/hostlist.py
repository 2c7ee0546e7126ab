"""Slurm's host lists without ``scontrol``, which containers do not have.

    node[1-3,07-10]     r[1-2]n[01-04]     a,b[1-2]     node[1-2]-ib

``expand_hostlist`` keeps order and duplicates, as ``scontrol show hostnames`` does. Text after the last
bracket (``node[1-2]-ib``) is read too, although Slurm refuses it: some sites write such names by
hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product

from allranks.errors import UsageError

_RANGE = re.compile(r"(\d+)(?:-(\d+))?\Z", re.ASCII)
_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?\Z", re.ASCII)
_PIECE = re.compile(r"\[([^\[\]]*)\]|([^\[\]]+)")

MOST_NAMES = 1 << 20
"""A limit: ``n[1-999999999]`` is a typing error and would fill the memory."""


def expand_hostlist(text: str) -> list[str]:
    """Return every name of a host list, in order."""
    names: list[str] = []
    for word in _split(text):
        if "[" not in word and "]" not in word:
            names.append(word)
            continue
        names.extend("".join(parts) for parts in product(*_pieces(word, text)))
        if len(names) > MOST_NAMES:
            raise _malformed(text, f"it stands for more than {MOST_NAMES} names")
    return names


def expand_counts(text: str) -> list[int]:
    """Return Slurm's tasks per node: ``2(x3),1`` is ``[2, 2, 2, 1]``."""
    counts: list[int] = []
    for word in text.strip().split(","):
        match = _COUNT.match(word.strip())
        if match is None:
            raise UsageError(f"'{text}' is not a list of counts. Slurm writes 4, 2(x3) or 2(x3),1.")
        counts.extend([int(match[1])] * int(match[2] or 1))
    return counts


def _split(text: str) -> Iterator[str]:
    """Split at the commas outside brackets; empty words (``a,,b``) are skipped, as in Slurm."""
    depth = start = 0
    for position, char in enumerate(text):
        if char == "[":
            depth += 1
        elif char == "]":
            depth -= 1
        elif char == "," and depth == 0:
            yield from filter(None, [text[start:position].strip()])
            start = position + 1
        if depth not in (0, 1):
            raise _malformed(text, "its brackets do not match")
    if depth:
        raise _malformed(text, "a bracket is not closed")
    yield from filter(None, [text[start:].strip()])


def _pieces(word: str, text: str) -> list[list[str]]:
    """Return the choices at each position of ``r[1-2]n[01-04]``: ``[["r"], ["1", "2"], ["n"], …]``."""
    total, pieces = 1, []
    for inside, plain in _PIECE.findall(word):
        pieces.append([plain] if plain else list(_numbers(inside, text)))
        total *= len(pieces[-1])
        if total > MOST_NAMES:
            raise _malformed(text, f"it stands for more than {MOST_NAMES} names")
    if word.count("[") != sum(not plain for _, plain in _PIECE.findall(word)):
        raise _malformed(text, "its brackets do not match")
    return pieces


def _numbers(inside: str, text: str) -> Iterator[str]:
    """``1-3,07`` is 1, 2, 3, 07: the first number's width is the padding."""
    for part in inside.split(","):
        match = _RANGE.match(part.strip())
        if match is None:
            raise _malformed(text, f"'{part}' is not a number or a range")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise _malformed(text, f"the range {part} runs backwards")
        if last - first >= MOST_NAMES:
            raise _malformed(text, f"it stands for more than {MOST_NAMES} names")
        width = len(match[1])
        yield from (f"{number:0{width}d}" for number in range(first, last + 1))


def _malformed(text: str, why: str) -> UsageError:
    shown = text if len(text) <= 80 else text[:77] + "…"
    return UsageError(f"'{shown}' is not a host list: {why}. Slurm writes node[1-3,07-10],gpu2.")
