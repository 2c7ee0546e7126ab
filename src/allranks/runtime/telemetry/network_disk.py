"""Bytes over the network of the node, and to and from disks by the ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from allranks.runtime.telemetry import read_number, read_text
from allranks.runtime.telemetry.process_tree import Key, ProcessStat, UsageCounter

_WORD = 4
"""Ports of InfiniBand count words of four bytes."""
_IP_OVER_INFINIBAND = "32"

ByteCounts = tuple[int, int]
"""Bytes received (or read) and bytes sent (or written)."""


class NetworkDiskUsage:
    """Bytes per second over the network of the node, and of the ranks' disk accesses."""

    def __init__(self, proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> None:
        self._proc = proc
        self._sys = sys
        self._lines: dict[str, ByteCounts] = {}
        self._read, self._written = UsageCounter(), UsageCounter()

    def sample(self, members: Mapping[int, ProcessStat], seconds: float) -> dict[str, Any]:
        """Return means over the last ``seconds``; the first call only starts the counters."""
        rates = {**self._network(), **self._disk(members.values())}
        return {name: round(count / seconds) for name, count in rates.items() if seconds > 0}

    def _network(self) -> dict[str, int]:
        now = {**interfaces(self._proc, self._sys), **ports(self._sys)}
        before, self._lines = self._lines, now
        if not now:
            return {}
        # A counter that bereceived smaller was reset.
        received = sum(max(now[name][0] - old[0], 0) for name, old in before.items() if name in now)
        sent = sum(max(now[name][1] - old[1], 0) for name, old in before.items() if name in now)
        return {"net_in": received, "net_out": sent}

    def _disk(self, members: Iterable[ProcessStat]) -> dict[str, int]:
        counts = {p.key: found for p in members if (found := _disk_bytes(self._proc, p.pid))}
        if not counts:
            return {}
        # A process inherits the counts of those that it waited for, and shows only the sum.
        read: dict[Key, ByteCounts] = {key: (0, count[0]) for key, count in counts.items()}
        written: dict[Key, ByteCounts] = {key: (0, count[1]) for key, count in counts.items()}
        return {
            "disk_read": self._read.increase(read),
            "disk_write": self._written.increase(written),
        }


def interfaces(proc: Path, sys: Path) -> dict[str, ByteCounts]:
    """Return the counters of the interfaces that carry the node's traffic, each byte once.

    Bonds, bridges, VLANs and tunnels only hand on what a device carries. Inside a container there
    may be no device: then all count that are no part of another.
    """
    found = _net_dev(proc / "net" / "dev")
    folder = sys / "class" / "net"
    devices = {name for name in found if (folder / name / "device").exists()}
    if not devices:
        devices = {name for name in found if not (folder / name / "master").exists()}
    counted = _has_ports(sys)
    return {
        name: count
        for name, count in found.items()
        if name in devices and not (counted and _is_infiniband(folder / name))
    }


def ports(sys: Path) -> dict[str, ByteCounts]:
    """Return the counters of InfiniBand, RoCE and EFA ports, whose traffic no interface counts."""
    found = {}
    for port in sorted((sys / "class" / "infiniband").glob("*/ports/*")):
        name = f"{port.parent.parent.name}/{port.name}"
        received = read_number(port / "counters" / "port_rcv_data")
        sent = read_number(port / "counters" / "port_xmit_data")
        if received is not None and sent is not None:
            found[name] = (received * _WORD, sent * _WORD)
            continue
        received = read_number(port / "hw_counters" / "rx_bytes")
        sent = read_number(port / "hw_counters" / "tx_bytes")
        if received is not None and sent is not None:
            found[name] = (received, sent)
    return found


def _has_ports(sys: Path) -> bool:
    return any((sys / "class" / "infiniband").glob("*/ports/*"))


def _is_infiniband(folder: Path) -> bool:
    """IP over InfiniBand: its bytes are among those of the port."""
    return read_text(folder / "type") == _IP_OVER_INFINIBAND


def _net_dev(path: Path) -> dict[str, ByteCounts]:
    found = {}
    for line in read_text(path).splitlines()[2:]:
        name, _, numbers = line.partition(":")
        words = numbers.split()
        if name.strip() != "lo" and len(words) >= 9:
            found[name.strip()] = (int(words[0]), int(words[8]))
    return found


def _disk_bytes(proc: Path, pid: int) -> ByteCounts | None:
    try:
        with open(f"{proc}/{pid}/io", "rb", buffering=0) as file:
            words = file.read().split()
    except OSError:  # gone, or not ours to see
        return None
    pairs = dict(zip(words[::2], words[1::2], strict=False))
    if b"read_bytes:" not in pairs or b"write_bytes:" not in pairs:
        return None
    return int(pairs[b"read_bytes:"]), int(pairs[b"write_bytes:"])
