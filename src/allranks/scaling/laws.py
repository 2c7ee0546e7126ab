"""Amdahl's and Gustafson's laws: the share of the work that more processes do not make faster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LEAST_POINTS = 3


@dataclass(frozen=True)
class Fit:
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


def fit_law(kind: str, growths: Sequence[float], speedups: Sequence[float]) -> Fit | None:
    """The law of this kind of scaling; None with fewer than three points.

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
    return Fit(law, min(max(serial, 0.0), 1.0))
