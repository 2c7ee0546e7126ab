"""The class of an advice, and the formatting that all of them share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from allranks.core.units import format_time, parse_time
from allranks.errors import UsageError
from allranks.observe.report.model import RunFacts

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


def format_count(count: float, one: str, many: str = "") -> str:
    """Format a count with its noun: ``1 GPU``, ``4 GPUs``, ``2.5 CPUs``."""
    number = f"{count:.0f}" if count >= 10 or count == round(count) else f"{count:.1f}"
    return f"{number} {one if number == '1' else many or one + 's'}"


def join_names(words: Sequence[str], most: int = 3) -> str:
    """Join names: ``a, b and c``; ``a, b, c and 5 more``."""
    if len(words) <= 1:
        return "".join(words)
    if len(words) > most:
        return ", ".join(words[:most]) + f" and {len(words) - most} more"
    return ", ".join(words[:-1]) + f" and {words[-1]}"


def round_memory(bytes_: float) -> int:
    """Round bytes up to 256 MiB steps, above 8 GiB to whole GiB."""
    unit = GIB if bytes_ > 8 * GIB else 256 * MIB
    return math.ceil(bytes_ / unit) * unit


def round_time(seconds: float) -> int:
    """Round seconds up to 10 minutes, above 3 hours to half hours, above a day to hours."""
    unit = 600 if seconds <= 3 * 3600 else 1800 if seconds <= 86400 else 3600
    return math.ceil(seconds / unit) * unit


def option_to_type(facts: RunFacts, option: str, value: int | str) -> str:
    """Return an option of allranks, or for an external job a line of its script."""
    ours = facts.kind == "run"
    if option == "memory":
        mebibytes = int(value) // MIB
        value = f"{mebibytes // 1024}G" if mebibytes % 1024 == 0 else f"{mebibytes}M"
        return f"--memory {value}" if ours else f"#SBATCH --mem={value}"
    if option == "time":
        value = short_time(int(value)) if ours else format_time(int(value))
    return f"--{option} {value}" if ours else f"#SBATCH --{option}={value}"


def train_config(facts: RunFacts, **values: float | str) -> str:
    """Return the TrainConfig to write; empty without a Trainer."""
    words = ", ".join(f"{name}={value!r}" for name, value in values.items())
    return f"TrainConfig({words})" if facts.settings and words else ""


def integer_setting(facts: RunFacts, name: str) -> int | None:
    """Return an integer setting of the Trainer; None where it is not set."""
    text = facts.settings.get(name, "")
    return int(text) if text.isdecimal() else None


def time_setting(facts: RunFacts, name: str) -> int | None:
    """Return a time setting of the Trainer in seconds; None where it is not set."""
    try:
        return parse_time(facts.settings[name])
    except (KeyError, UsageError):
        return None


def round_down(count: int) -> int:
    """Round down to one digit: ``347`` becomes 300."""
    unit = int(10 ** (len(str(count)) - 1))
    return max(count // unit * unit, 1)


def short_time(seconds: int) -> str:
    """Format seconds: ``40m``, ``2h``, ``3h30m``; at least a minute."""
    hours, minutes = divmod(max(seconds // 60, 1), 60)
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if minutes or not hours else "")
