"""CPUs, memory, network and disks of a node: of its ranks and what they started, and of the whole node."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from allranks.runtime.telemetry.cgroups import Cgroups
from allranks.runtime.telemetry.network_disk import NetworkDiskUsage
from allranks.runtime.telemetry.process_tree import (
    TICKS,
    ProcessStat,
    ProcessTree,
    TreeMemory,
    UsageCounter,
)


class NodeMetrics:
    """CPUs, memory, network and disks of one node; rates are means since the last sample."""

    def __init__(self, tree: ProcessTree, env: Mapping[str, str]) -> None:
        self._tree = tree
        self._host = HostUsage(tree, env)
        self._traffic = NetworkDiskUsage()
        self._when = time.monotonic()
        self.sample()  # the counters start here

    def facts(self) -> dict[str, Any]:
        """Return what the ranks may use."""
        return self._host.facts()

    def sample(self) -> dict[str, Any]:
        """Return rates since the last sample, and the memory in use now."""
        now = time.monotonic()
        seconds, self._when = now - self._when, now
        members = self._tree.sample()
        return {
            "seconds": round(seconds, 3),
            **self._host.sample(members, seconds),
            **self._traffic.sample(members, seconds),
        }


_BUSY = (0, 1, 2, 5, 6)
"""user, nice, system, irq, softirq; not idle, iowait, and not what a hypervisor took."""


class HostUsage:
    """CPUs and memory; rates are means since the last sample."""

    def __init__(
        self,
        tree: ProcessTree,
        env: Mapping[str, str],
        cgroups: Cgroups | None = None,
        proc: str = "/proc",
    ) -> None:
        self._tree = tree
        self._env = env
        self._cgroups = cgroups or Cgroups()
        # The group of a step that is ours holds the ranks and nothing else; that of a shell or a job
        # script holds all that was started there.
        self._own_step = env.get("SLURM_TASK_PID") == str(tree.root)
        self._proc = proc
        self._used = UsageCounter()
        self._held = TreeMemory(proc)
        self._allowed: set[int] = set()
        self._step_seconds: float | None = None
        self._node_seconds: float | None = None

    def facts(self) -> dict[str, Any]:
        """Return what the ranks may use, and what the node has."""
        total = _memory_info(self._proc).get("MemTotal")
        return {
            "cpus": self._cpus(),
            "cpus_total": os.cpu_count(),
            "memory_limit": self._limit(),
            "memory_total": total,
        }

    def sample(self, members: Mapping[int, ProcessStat], seconds: float) -> dict[str, Any]:
        """Return the CPUs busy over the last ``seconds``, and the bytes in use now."""
        held = self._cgroups.memory_used() if self._own_step else None
        if held is None:
            held = self._held.bytes(members)
        info = _memory_info(self._proc)
        used = info["MemTotal"] - info["MemAvailable"] if "MemAvailable" in info else None
        return {
            "cpu": _rate(self._seconds_of_ranks(members), seconds),
            "cpu_node": _rate(self._seconds_of_node(), seconds),
            "memory": held,
            "memory_node": used,
        }

    def _cpus(self) -> int:
        """Count the CPUs of all ranks together: srun may have bound each to its own."""
        for pid in self._tree.roots():
            with suppress(OSError):  # it has ended
                self._allowed |= os.sched_getaffinity(pid)
        counts: list[float] = [len(self._allowed) or os.cpu_count() or 1]
        # Where Slurm does not bind, the ranks see more CPUs than were given to them.
        if (given := self._env.get("SLURM_CPUS_ON_NODE", "")).isdigit():
            counts.append(int(given))
        if limit := self._cgroups.cpu_limit():
            counts.append(limit)
        return max(math.ceil(min(counts)), 1)

    def _limit(self) -> int | None:
        limit = self._cgroups.memory_limit()
        if limit is not None:
            return limit
        node, each, cpus = (
            int(text) if (text := self._env.get(f"SLURM_{name}", "")).isdigit() else 0
            for name in ("MEM_PER_NODE", "MEM_PER_CPU", "CPUS_ON_NODE")
        )
        return (node or each * cpus) << 20 or None

    def _seconds_of_ranks(self, members: Mapping[int, ProcessStat]) -> float | None:
        """Return the CPU time since the last call; None at the first."""
        total = self._cgroups.cpu_seconds() if self._own_step else None
        if total is None:
            counts = {p.key: (p.own, p.waited) for p in members.values()}
            return self._used.increase(counts) / TICKS
        before, self._step_seconds = self._step_seconds, total
        return None if before is None else max(total - before, 0.0)

    def _seconds_of_node(self) -> float | None:
        before, self._node_seconds = self._node_seconds, _busy(self._proc)
        if before is None or self._node_seconds is None:
            return None
        return max(self._node_seconds - before, 0.0)


def _busy(proc: str) -> float | None:
    """Return the busy seconds of all CPUs of the node since it booted."""
    try:
        with open(f"{proc}/stat", "rb") as file:
            words = file.readline().split()[1:]
    except OSError:
        return None
    return sum(int(words[column]) for column in _BUSY) / TICKS


def _memory_info(proc: str) -> dict[str, int]:
    """Return bytes by name."""
    found = {}
    try:
        with open(f"{proc}/meminfo") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name in ("MemTotal", "MemAvailable"):
                    found[name] = int(value.split()[0]) << 10
    except OSError:
        return {}
    return found


def _rate(amount: float | None, seconds: float) -> float | None:
    return None if amount is None or seconds <= 0 else round(amount / seconds, 3)
