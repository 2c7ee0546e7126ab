"""A small picture of cells as a PNG: a thousandth of what one element each would take."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Sequence

from allranks.core.plots.axes import clipped

_ANCHORS = (
    (68, 1, 84), (71, 45, 123), (59, 82, 139), (44, 114, 142), (33, 145, 140), (40, 174, 128),
    (94, 201, 98), (173, 220, 48), (253, 231, 37),
)  # fmt: skip
"""Viridis: even to the eye, also to the colour-blind and in grey."""
LEVELS = 96
"""Colours of the scale; the one after them is transparent: no value."""


def data_uri(values: Sequence[Sequence[float | None]], low: float, high: float) -> str:
    """Return the cells as a data URI that contains the image."""
    return "data:image/png;base64," + base64.b64encode(png(values, low, high)).decode("ascii")


def png(values: Sequence[Sequence[float | None]], low: float, high: float) -> bytes:
    """Encode the cells as a PNG, one pixel each, coloured from ``low`` to ``high``."""
    width = max((len(row) for row in values), default=0)
    rows = [bytes(_level(value, low, high) for value in row) for row in values]
    raw = b"".join(b"\0" + row.ljust(width, bytes([LEVELS])) for row in rows)
    header = struct.pack(">IIBBBBB", width, len(rows), 8, 3, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        (
            _chunk(b"IHDR", header),
            _chunk(b"PLTE", b"".join(map(bytes, palette())) + b"\0\0\0"),
            _chunk(b"tRNS", b"\xff" * LEVELS + b"\0"),
            _chunk(b"IDAT", zlib.compress(raw, 9)),
            _chunk(b"IEND", b""),
        )
    )


def palette() -> list[tuple[int, int, int]]:
    """Return the colours of the scale, from low to high."""
    return [_colour(place / (LEVELS - 1)) for place in range(LEVELS)]


def _level(value: float | None, low: float, high: float) -> int:
    if value is None or not math.isfinite(value):
        return LEVELS
    value, low, high = clipped(value), clipped(low), clipped(high)
    share = (value - low) / (high - low) if high > low else 1.0
    return round(min(max(share, 0.0), 1.0) * (LEVELS - 1))


def _colour(share: float) -> tuple[int, int, int]:
    place = share * (len(_ANCHORS) - 1)
    first = min(int(place), len(_ANCHORS) - 2)
    part = place - first
    red, green, blue = (
        round(a + (b - a) * part) for a, b in zip(_ANCHORS[first], _ANCHORS[first + 1], strict=True)
    )
    return red, green, blue


def _chunk(kind: bytes, data: bytes) -> bytes:
    body = kind + data
    return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))
