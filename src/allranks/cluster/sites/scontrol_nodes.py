"""Parse the output of ``scontrol`` into records.

The one-line form (``-o``) has kept its shape from Slurm 22.05 to 26.05: ``Key=Value`` with blanks
between, new keys among old ones. Only a few values hold blanks (``OS=``, ``Reason=``), and none of
those is read here, so a record is the first value of each wanted key.
"""

from __future__ import annotations

import re

from allranks.core.units import parse_time
from allranks.errors import UsageError

Record = dict[str, str]

_NODE_KEYS = (
    "NodeName", "CPUTot", "CPUEfctv", "CoreSpecCount", "ThreadsPerCore", "RealMemory",
    "MemSpecLimit", "Gres", "State", "Partitions",
)  # fmt: skip
_PARTITION_KEYS = (
    "PartitionName", "Default", "Hidden", "RootOnly", "MaxNodes", "MaxTime", "MaxCPUsPerNode",
    "MaxMemPerNode", "OverSubscribe", "PreemptMode", "PriorityTier", "State", "TotalNodes",
)  # fmt: skip
_NOTHING = ("", "(null)", "N/A", "n/a", "NONE", "UNLIMITED", "INFINITE")
# gpu:4, gpu:a100:4(S:0-1), gpu:(null):2(S:0,1); other resources (mps, shard) are passed over.
_GPU = re.compile(r"(?:^|,)gpu:(?:\(null\):)?(?:([^:,()]+):)?(\d+)", re.IGNORECASE)
_SETTING = re.compile(r"^(\S+)\s*= ?(.*)$", re.MULTILINE)
_AMD = re.compile(r"^(amd|mi\d|gfx\d|radeon|instinct)", re.IGNORECASE)
_NVIDIA = re.compile(
    r"^(nvidia|tesla|quadro|geforce|[rg]tx|titan|[apvhbltk]\d|gb?[hb]?\d|gh\d|\dg\.)", re.IGNORECASE
)


def nodes(text: str) -> list[Record]:
    """Parse ``scontrol show node -o``."""
    return _records(text, _NODE_KEYS)


def partitions(text: str) -> list[Record]:
    """Parse ``scontrol show partition -o``."""
    return _records(text, _PARTITION_KEYS)


def _records(text: str, keys: tuple[str, ...]) -> list[Record]:
    pattern = re.compile(rf"(?:^|\s)({'|'.join(keys)})=(\S*)")
    first = f"{keys[0]}="
    records = []
    for line in text.splitlines():
        if line.startswith(first):
            record: Record = {}
            for key, value in pattern.findall(line):
                record.setdefault(key, value)  # a Reason= may repeat a key, behind the real one
            records.append(record)
    return records


def settings(text: str) -> Record:
    """Parse ``scontrol show config``."""
    table: Record = {}
    for key, value in _SETTING.findall(text):
        table.setdefault(key, value.strip())
    return table


def number(value: str | None) -> int | None:
    """Parse a count; None for UNLIMITED and the like. ``3 sec`` is 3."""
    if value is None or value in _NOTHING:
        return None
    match = re.match(r"\d+", value)
    return int(match[0]) if match else None


def seconds(value: str | None) -> int | None:
    """Parse a time limit; None for UNLIMITED."""
    if value is None or value in _NOTHING:
        return None
    try:
        return parse_time(value)
    except UsageError:
        return None


def gpus(gres: str | None) -> list[tuple[str | None, int]]:
    """Parse GPU types and counts of a node's ``Gres``; equal types are added up."""
    counts: dict[str | None, int] = {}
    for name, count in _GPU.findall(gres or ""):
        counts[name or None] = counts.get(name or None, 0) + int(count)
    return [(name, count) for name, count in counts.items() if count]


def vendor(gpu_type: str | None) -> str | None:
    """Return the vendor of a GPU type, where the name shows it."""
    if gpu_type is None:
        return None
    if _AMD.match(gpu_type):
        return "amd"
    return "nvidia" if _NVIDIA.match(gpu_type) else None
