"""Numbers as Slurm's accounting writes them: sizes, spent times, and lists of trackable resources."""

from __future__ import annotations

import re
from collections.abc import Mapping

_NUMBER = re.compile(r"^(\d+(?:\.\d+)?)([KMGTP]?)[nc]?$")
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}
_SPENT = re.compile(r"^(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)$")
_GPU = re.compile(r"^gres/gpu(?::(?P<type>.+))?$")
_PER_NODE = re.compile(r"gpu(?::(?P<type>[A-Za-z][\w.-]*))?(?:[:=]\d+)?")


def tres(text: str) -> dict[str, str]:
    """``cpu=8,mem=1200M,gres/gpu=4`` by name."""
    pairs = (word.partition("=") for word in text.split(",") if "=" in word)
    return {name.strip(): value.strip() for name, _, value in pairs}


def size(text: str) -> int | None:
    """Bytes in ``1228800K``, ``1.5G``, also the old ``600Mn``; None when it is no size."""
    match = _NUMBER.match(text.strip())
    return round(float(match[1]) * 1024 ** _POWERS[match[2]]) if match else None


def count(text: str) -> float | None:
    """A plain number; Slurm's ``K`` and ``M`` of numbers are thousands."""
    match = _NUMBER.match(text.strip())
    return float(match[1]) * 1000.0 ** _POWERS[match[2]] if match else None


def spent_seconds(text: str) -> float | None:
    """CPU time: ``[DD-[HH:]]MM:SS.mmm``."""
    match = _SPENT.match(text.strip())
    if match is None:
        return None
    days, hours, minutes, seconds = match.groups()
    return int(days or 0) * 86400 + int(hours or 0) * 3600 + int(minutes) * 60 + float(seconds)


def gpus(resources: Mapping[str, str]) -> int:
    """How many GPUs; the typed entries repeat what the plain one says."""
    if "gres/gpu" in resources:
        return round(count(resources["gres/gpu"]) or 0)
    typed = [count(value) or 0 for name, value in resources.items() if _GPU.match(name)]
    return round(sum(typed))


def gpu_type(resources: Mapping[str, str]) -> str:
    """Which GPUs, where the site tracks types: ``a100``; empty otherwise."""
    matches = (_GPU.match(name) for name in resources)
    return ",".join(dict.fromkeys(match["type"] for match in matches if match and match["type"]))


def requested_type(text: str) -> str:
    """The type in a request, ``gres:gpu:a100:2`` or ``gres/gpu:a100=2``."""
    match = _PER_NODE.search(text)
    return (match["type"] or "") if match else ""
