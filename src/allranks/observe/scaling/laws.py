"""Amdahl's and Gustafson's laws: the share of the work that more processes do not make faster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

LEAST_POINTS = 3
_OFF = 0.1
"""A law that is off by a larger share at any size does not describe the points."""


@dataclass(frozen=True)
class LawFit:
    """The law with the serial share that suits the points best, by least squares."""

    law: str
    """"Amdahl" for strong scaling, "Gustafson" for weak."""
    serial: float
    """From 0 to 1."""

    def speedup(self, growth: float) -> float:
        """What the law says of ``growth`` times the smallest size."""
        if self.law == "Amdahl":
            return 1 / (self.serial + (1 - self.serial) / growth)
        return growth - self.serial * (growth - 1)

    @property
    def limit(self) -> float | None:
        """The speed-up that no size exceeds; None: there is none."""
        return 1 / self.serial if self.law == "Amdahl" and self.serial > 0 else None


def fit_law(kind: str, growths: Sequence[float], speedups: Sequence[float]) -> LawFit | None:
    """The law of this kind of scaling; None with fewer than three points, or where it does not hold.

    ``growths`` are sizes over the smallest one, so the first point lies on the curve whatever the share.
    """
    if len(growths) < LEAST_POINTS:
        return None
    if kind == "strong":  # 1/S = s + (1 - s)/g
        pairs = [(1 - 1 / g, 1 / s - 1 / g) for g, s in zip(growths, speedups, strict=True)]
        law = "Amdahl"
    else:  # S = g - s (g - 1)
        pairs = [(g - 1, g - s) for g, s in zip(growths, speedups, strict=True)]
        law = "Gustafson"
    weight = sum(a * a for a, _ in pairs)
    serial = sum(a * b for a, b in pairs) / weight if weight else 0.0
    fit = LawFit(law, min(max(serial, 0.0), 1.0))
    return fit if _holds(fit, growths, speedups) else None


def falls(speedups: Sequence[float]) -> int | None:
    """The place of the first speed-up that is below the one before; None when there is none."""
    return next((n for n, (a, b) in enumerate(pairwise(speedups), start=1) if b < a), None)


def _holds(fit: LawFit, growths: Sequence[float], speedups: Sequence[float]) -> bool:
    """Both laws rise, and Amdahl's never above its limit: what does otherwise follows another law."""
    if falls(speedups) is not None or (fit.limit and max(speedups) > fit.limit):
        return False
    pairs = zip(growths, speedups, strict=True)
    return all(abs(fit.speedup(growth) / real - 1) <= _OFF for growth, real in pairs)
