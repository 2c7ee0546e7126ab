"""What a piece of advice is, and the words that all of them use."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from allranks.report.model import Facts
from allranks.units import format_time

SEVERITIES = ("error", "warning", "note")
"""In the order in which they are shown."""
GIB = 2**30
MIB = 2**20


@dataclass(frozen=True)
class Advice:
    """One thing to change, with its numbers and what to type."""

    id: str
    severity: str
    """"error": the run suffered from it; "warning": it costs much; "note": it may be worth a try."""
    text: str
    command: str = ""
    """What to type or write, where that is one line."""


def percent(share: float) -> str:
    """``34 %``; ``<1 %`` for a little that is not nothing."""
    if 0 < share < 0.01:
        return "<1 %"
    return f"{share * 100:.0f} %"


def amount(count: float, one: str, many: str = "") -> str:
    """``1 GPU``, ``4 GPUs``, ``2.5 CPUs``."""
    number = f"{count:.0f}" if count >= 10 or count == round(count) else f"{count:.1f}"
    return f"{number} {one if number == '1' else many or one + 's'}"


def size(bytes_: float) -> str:
    """``9.5 GiB``, ``640 MiB``."""
    if bytes_ >= 1024 * GIB:
        return f"{bytes_ / (1024 * GIB):.3g} TiB"
    if bytes_ >= GIB:
        value = bytes_ / GIB
        return f"{value:.0f} GiB" if value >= 100 else f"{value:.3g} GiB"
    return f"{bytes_ / MIB:.0f} MiB"


def span(seconds: float) -> str:
    """``45 s``, ``2 min 30 s``, ``12 min``, ``2 h 05 min``, ``3 d 4 h``."""
    if seconds < 119.5:
        return f"{seconds:.0f} s"
    if seconds < 599.5:
        minute, second = divmod(round(seconds), 60)
        return f"{minute} min {second:02} s" if second else f"{minute} min"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minute = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minute:02} min" if minute else f"{hours} h"
    days, hour = divmod(hours, 24)
    return f"{days} d {hour} h" if hour else f"{days} d"


def names(words: Sequence[str], most: int = 3) -> str:
    """``a, b and c``; ``a, b, c and 5 more``."""
    if len(words) <= 1:
        return "".join(words)
    if len(words) > most:
        return ", ".join(words[:most]) + f" and {len(words) - most} more"
    return ", ".join(words[:-1]) + f" and {words[-1]}"


def memory_to_ask(bytes_: float) -> int:
    """Bytes rounded up to what people ask for: 256 MiB steps, above 8 GiB whole GiB."""
    unit = GIB if bytes_ > 8 * GIB else 256 * MIB
    return math.ceil(bytes_ / unit) * unit


def time_to_ask(seconds: float) -> int:
    """Seconds rounded up to 10 minutes, above 3 hours to half hours, above a day to hours."""
    unit = 600 if seconds <= 3 * 3600 else 1800 if seconds <= 86400 else 3600
    return math.ceil(seconds / unit) * unit


def ask(facts: Facts, option: str, value: int | str) -> str:
    """What to type next time: an option of ours, or for a job of another kind a line of its script."""
    ours = facts.kind == "run"
    if option == "memory":
        mebibytes = int(value) // MIB
        value = f"{mebibytes // 1024}G" if mebibytes % 1024 == 0 else f"{mebibytes}M"
        return f"--memory {value}" if ours else f"#SBATCH --mem={value}"
    if option == "time":
        value = _short_time(int(value)) if ours else format_time(int(value))
    return f"--{option} {value}" if ours else f"#SBATCH --{option}={value}"


def _short_time(seconds: int) -> str:
    """``40m``, ``2h``, ``3h30m``."""
    hours, minutes = divmod(seconds // 60, 60)
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if minutes or not hours else "")
