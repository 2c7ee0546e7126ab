"""Parse times, memory and GPUs as people write them, and format them for Slurm."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from allranks.errors import UsageError

_CLOCK = re.compile(r"^(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?$")
_SPANS = re.compile(
    r"^(?:(\d+)\s*d)?\s*(?:(\d+)\s*h)?\s*(?:(\d+)\s*m(?:in)?)?\s*(?:(\d+)\s*s)?$", re.I
)
_MEMORY = re.compile(r"^(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?$", re.I)
_GPUS = re.compile(r"(?:gpu:)?(?:([\w.-]+):)?([0-9]+)", re.ASCII)
_MEBIBYTES = {"k": 1 / 1024, "": 1, "m": 1, "g": 1024, "t": 1024 * 1024}


def parse_time(text: str) -> int:
    """Return the seconds in a time: ``2h``, ``90m``, ``1d12h``, and Slurm's ``15``, ``12:00:00``, ``0-03:00``.

    A bare number is minutes, ``MM:SS`` is minutes and seconds, and after a day count the first number
    is hours: Slurm's own rules.
    """
    text = str(text).strip()
    if match := _CLOCK.match(text):
        days, first, second, third = match.groups()
        numbers = [int(part) for part in (first, second, third) if part is not None]
        if days is not None:
            weights: tuple[int, ...] = (3600, 60, 1)
        else:
            weights = {1: (60,), 2: (60, 1), 3: (3600, 60, 1)}[len(numbers)]
        return int(days or 0) * 86400 + sum(n * w for n, w in zip(numbers, weights, strict=False))
    if text and (match := _SPANS.match(text)):
        day, hour, minute, second = (int(part or 0) for part in match.groups())
        return day * 86400 + hour * 3600 + minute * 60 + second
    raise UsageError(f"'{text}' is not a time. Write 2h, 90m, 1d12h, 12:00:00 or 0-03:00.")


def format_time(seconds: int) -> str:
    """Return Slurm's ``D-HH:MM:SS``, without the days when there are none."""
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return (f"{days}-" if days else "") + f"{hour:02}:{minute:02}:{second:02}"


def parse_memory(text: str) -> int:
    """Return the mebibytes in a memory size: ``64G``, ``4000``, ``1.5T``, ``512MB``. Bare numbers are mebibytes."""
    if match := _MEMORY.match(str(text).strip()):
        return math.ceil(
            float(match[1]) * _MEBIBYTES[match[2].lower()]
        )  # 512K is not 0, which is all
    raise UsageError(f"'{text}' is not a memory size. Write 64G, 4000M or 0 (all of the node).")


def format_memory(mebibytes: int) -> str:
    """Return Slurm's spelling: ``64G`` where it is whole, else ``65000M``."""
    return f"{mebibytes // 1024}G" if mebibytes and mebibytes % 1024 == 0 else f"{mebibytes}M"


@dataclass(frozen=True)
class Gpus:
    """A number of GPUs, with an optional type: ``4``, ``A100:4``."""

    count: int
    type: str | None = None

    @classmethod
    def parse(cls, text: str | int | Gpus) -> Gpus:
        """Parse ``4``, ``A100:4``, ``gpu:4`` or ``gpu:A100:4``."""
        if isinstance(text, Gpus):
            return text
        if match := _GPUS.fullmatch(str(text).strip()):
            return cls(int(match[2]), match[1])
        raise UsageError(f"'{text}' is not a number of GPUs. Write 4, or with a type A100:4.")

    def __str__(self) -> str:
        return f"{self.type}:{self.count}" if self.type else str(self.count)
