"""Limits and usage of a process's cgroup; version 2, and version 1 of older clusters."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from allranks.runtime.telemetry import read_number, read_text

ROOT = Path("/sys/fs/cgroup")
_STEP = re.compile(r"^.*/job_\d+/step_[^/]+")
"""Slurm's cgroup of a job step, whatever is above and below it."""
_NO_LIMIT = 1 << 60
"""Version 1 writes a huge number where there is none."""


class Cgroups:
    """The groups of one process, one for each kind of resource in version 1."""

    def __init__(self, pid: int | str = "self", proc: Path = Path("/proc"), root: Path = ROOT):
        self._root = root
        self._paths = _paths(proc / str(pid) / "cgroup")
        self._unified = (root / "cgroup.controllers").exists()

    def memory_limit(self) -> int | None:
        """Return the smallest limit of the group and all above it, in bytes."""
        name = "memory.max" if self._unified else "memory.limit_in_bytes"
        limits = [read_number(folder / name) for folder in self._upwards("memory")]
        return min((limit for limit in limits if limit and limit < _NO_LIMIT), default=None)

    def cpu_limit(self) -> float | None:
        """Return the CPU quota in CPUs, such as 2.5."""
        limits = [self._quota(folder) for folder in self._upwards("cpu")]
        return min((limit for limit in limits if limit), default=None)

    def cpu_seconds(self) -> float | None:
        """Return the CPU time of the Slurm step, its ended processes included; None outside of one."""
        folder = self._step("cpuacct")
        if folder is None:
            return None
        if self._unified:
            used = _named(folder / "cpu.stat").get("usage_usec")
            return None if used is None else used / 1e6
        used = read_number(folder / "cpuacct.usage")
        return None if used is None else used / 1e9

    def memory_used(self) -> int | None:
        """Return the memory of the Slurm step in bytes, without the page cache."""
        folder = self._step("memory")
        if folder is None:
            return None
        held = read_number(
            folder / ("memory.current" if self._unified else "memory.usage_in_bytes")
        )
        if held is None:
            return None
        parts = _named(folder / "memory.stat")
        prefix = "" if self._unified else "total_"
        files = sum(parts.get(f"{prefix}{kind}_file", 0) for kind in ("active", "inactive"))
        return max(held - files, 0)

    def _step(self, controller: str) -> Path | None:
        match = _STEP.match(self._path(controller))
        folder = self._mount(controller) / match[0].lstrip("/") if match else None
        return folder if folder and folder.is_dir() else None

    def _upwards(self, controller: str) -> Iterator[Path]:
        mount = self._mount(controller)
        folder = mount / self._path(controller).lstrip("/")
        # A container may show the host's path and mount only its own group.
        if not folder.is_dir():
            folder = mount
        while True:
            yield folder
            if folder == mount or mount not in folder.parents:
                return
            folder = folder.parent

    def _path(self, controller: str) -> str:
        return self._paths.get("" if self._unified else controller, "/")

    def _mount(self, controller: str) -> Path:
        return self._root if self._unified else self._root / controller

    def _quota(self, folder: Path) -> float | None:
        if self._unified:
            words = read_text(folder / "cpu.max").split()
            if len(words) != 2 or not words[0].isdigit():
                return None
            return int(words[0]) / int(words[1])
        quota = read_number(folder / "cpu.cfs_quota_us")
        period = read_number(folder / "cpu.cfs_period_us")
        return quota / period if quota and period and quota > 0 else None


def _paths(file: Path) -> dict[str, str]:
    """``9:cpu,cpuacct:/a/b`` → {"cpu": "/a/b", "cpuacct": "/a/b"}; version 2 has no name."""
    found = {}
    for line in read_text(file).splitlines():
        _, names, path = line.split(":", 2)
        found.update(dict.fromkeys(names.split(","), path))
    return found


def _named(path: Path) -> dict[str, int]:
    """Parse lines of a name and a number."""
    pairs = (line.split() for line in read_text(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
