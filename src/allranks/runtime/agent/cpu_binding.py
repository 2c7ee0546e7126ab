"""Bind each rank to the CPUs near its GPU, shared evenly among the ranks of the same NUMA node.

A rank on the far socket feeds its GPU through the link between the sockets. Slurm binds to cores,
but considers GPUs only where a site has configured it, and other launchers do not bind at all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from allranks.errors import UsageError

_SLURM_GPUS = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_AMD = "0x1002"
_UUID = re.compile(r"GPU UUID:\s*(\S+)")


def bind(
    setting: str,
    local_size: int,
    allowed: frozenset[int],
    env: Mapping[str, str],
    root: Path = Path("/"),
) -> list[frozenset[int] | None]:
    """Return the CPUs of each local rank among the ``allowed``; None leaves it unbound."""
    if setting == "none":
        return [None] * local_size
    if setting not in ("", "auto"):
        return _explicit(setting, local_size)
    near = nearby(env, root)
    if not near:
        return [None] * local_size
    # One visible GPU and many ranks: they share it. As many as ranks: each has its own.
    wanted = [near[local % len(near)] & allowed for local in range(local_size)]
    return _share(wanted, root)


def nearby(env: Mapping[str, str], root: Path = Path("/")) -> list[frozenset[int]]:
    """Return for each visible GPU, in order, the CPUs near it; empty when that is unknown."""
    found = _nvidia(root) or _amd(root)
    order = _visible(env, [uuid for uuid, _ in found])
    return [found[index][1] for index in order] if order is not None else []


def parse_cpus(text: str) -> frozenset[int]:
    """Return the CPUs of a list such as ``0-3,8,10-11``, as the kernel and Slurm write it."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if part:
            cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def format_cpus(cpus: Sequence[int] | frozenset[int]) -> str:
    """Return the list for these CPUs, the inverse of `parse_cpus`."""
    parts: list[list[int]] = []
    for cpu in sorted(cpus):
        if parts and cpu == parts[-1][1] + 1:
            parts[-1][1] = cpu
        else:
            parts.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def _explicit(setting: str, local_size: int) -> list[frozenset[int] | None]:
    lists = setting.split(";")
    try:
        cpus: list[frozenset[int] | None] = [parse_cpus(text) for text in lists]
    except ValueError:
        raise UsageError(
            f"ALLRANKS_BIND={setting} is not valid.\n"
            "Write auto, none, or a list per local rank: 0-7;8-15."
        ) from None
    if len(lists) < local_size:
        raise UsageError(
            f"ALLRANKS_BIND has {len(lists)} CPU lists, but this node has {local_size} ranks.\n"
            "Write one list per local rank, with ; between them: 0-7;8-15."
        )
    return cpus[:local_size]


def _nvidia(root: Path) -> list[tuple[str, frozenset[int]]]:
    """Return (UUID, CPUs) of each NVIDIA GPU in PCI order, which is the order of nvidia-smi."""
    found = []
    for folder in sorted((root / "proc/driver/nvidia/gpus").glob("*")):
        match = _UUID.search(_text(folder / "information"))
        cpus = _cpus(root / "sys/bus/pci/devices" / folder.name.lower())
        found.append((match[1] if match else "", cpus))
    return found


def _amd(root: Path) -> list[tuple[str, frozenset[int]]]:
    devices = {}
    for card in (root / "sys/class/drm").glob("card*"):
        device = (card / "device").resolve()
        if _text(device / "vendor").strip() == _AMD:
            devices[device.name] = ("", _cpus(device))
    return [devices[name] for name in sorted(devices)]


def _cpus(device: Path) -> frozenset[int]:
    try:
        return parse_cpus(_text(device / "local_cpulist"))
    except ValueError:
        return frozenset()


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _visible(env: Mapping[str, str], uuids: list[str]) -> list[int] | None:
    """Return the indices of the visible GPUs among all of the machine; None when unknown."""
    everything = list(range(len(uuids)))
    # Inside a Slurm cgroup CUDA counts from 0 again; these two keep the machine's numbers.
    host = next(
        (_indices(env[name], uuids, everything) for name in _SLURM_GPUS if env.get(name)),
        everything,
    )
    text = next((env[name] for name in _VISIBLE if name in env), None)
    return host if text is None or host is None else _indices(text, uuids, host)


def _indices(text: str, uuids: list[str], among: list[int]) -> list[int] | None:
    found = []
    for word in filter(None, (part.strip() for part in text.split(","))):
        if word.isdigit() and int(word) < len(among):
            found.append(among[int(word)])
        elif matches := [at for at, uuid in enumerate(uuids) if uuid and uuid.startswith(word)]:
            found.append(matches[0])
        else:
            return None
    return found


def _share(wanted: list[frozenset[int]], root: Path) -> list[frozenset[int] | None]:
    shares: list[frozenset[int] | None] = []
    for local, cpus in enumerate(wanted):
        sharers = [other for other, theirs in enumerate(wanted) if theirs == cpus]
        cores = _cores(cpus, root)
        if len(cores) < len(sharers):
            shares.append(None)
            continue
        at, count = sharers.index(local), len(sharers)
        mine = cores[at * len(cores) // count : (at + 1) * len(cores) // count]
        shares.append(frozenset().union(*mine))
    return shares


def _cores(cpus: frozenset[int], root: Path) -> list[frozenset[int]]:
    """Group the CPUs by core: two ranks on two threads of one core would slow each other down."""
    cores: dict[int, set[int]] = {}
    for cpu in sorted(cpus):
        path = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        try:
            first = min(parse_cpus(_text(path)), default=cpu)
        except ValueError:
            first = cpu
        cores.setdefault(first, set()).add(cpu)
    return [frozenset(cores[first]) for first in sorted(cores)]
