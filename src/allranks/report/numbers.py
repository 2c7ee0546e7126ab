"""Numbers for people: few digits, and a unit where they are large."""

from __future__ import annotations

import math

_SUFFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def figure(value: float) -> str:
    """Four digits at most: ``1.925``, ``0.2153``, ``3e-05``, ``12,345``."""
    if not math.isfinite(value):
        return "not finite"
    if abs(value) >= 10000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def short(value: float) -> str:
    """Three digits: ``13.7``, ``0.309``, ``412``."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def seconds(value: float) -> str:
    """Of a step: ``1.23 s``, ``309 ms``, ``0.82 ms``."""
    return f"{short(value)} s" if value >= 1 else f"{short(value * 1000)} ms"


def rate(value: float) -> str:
    """Three digits and a unit: ``302k``, ``1.5M``, ``41.4``."""
    if not math.isfinite(value):
        return "not finite"
    for size, suffix in _SUFFIXES:
        if abs(value) >= size:
            return f"{value / size:.3g}{suffix}"
    return f"{value:.3g}"


def energy(joules: float) -> str:
    """``74 Wh``, ``5.2 kWh``, ``1.03 MWh``."""
    hours = joules / 3600
    for size, unit in ((1e6, "MWh"), (1e3, "kWh")):
        if hours >= size:
            return f"{hours / size:.3g} {unit}"
    return f"{hours:.0f} Wh"
