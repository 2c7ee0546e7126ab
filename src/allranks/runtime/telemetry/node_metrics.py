"""One node with the ranks on it: everything that is sampled but the GPUs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from allranks.runtime.telemetry.cpu_memory import Host
from allranks.runtime.telemetry.network_disk import Traffic
from allranks.runtime.telemetry.process_tree import Tree


class Node:
    """CPUs, memory, network and disks. Asked again and again: rates are means since the last time."""

    def __init__(self, tree: Tree, env: Mapping[str, str]) -> None:
        self._tree = tree
        self._host = Host(tree, env)
        self._traffic = Traffic()
        self._when = time.monotonic()
        self.look()  # counters need a beginning

    def facts(self) -> dict[str, Any]:
        """What the ranks may use."""
        return self._host.facts()

    def look(self) -> dict[str, Any]:
        """What they did since the last look, and what they hold now."""
        now = time.monotonic()
        seconds, self._when = now - self._when, now
        members = self._tree.look()
        return {
            "seconds": round(seconds, 3),
            **self._host.look(members, seconds),
            **self._traffic.look(members, seconds),
        }
