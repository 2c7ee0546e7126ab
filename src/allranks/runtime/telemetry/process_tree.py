"""The ranks and everything that they started, found in ``/proc``: their CPU time and memory.

Ranks that one agent or a Trainer started are below it. Where every rank has an agent of its own (srun,
torchrun, mpirun), the others are recognised by the variables that their launcher gave to all of them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
_SAMPLES_PER_SCAN = 20
"""After this many samples, processes that were not ours are read again: pids are reused."""
_LAUNCH_VARIABLES = (
    "ALLRANKS_ATTEMPT_DIR", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_NODEID", "TORCHELASTIC_RUN_ID",
    "GROUP_RANK", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "MASTER_PORT",
)  # fmt: skip
"""Variables that all ranks of one launch on one node have in common, and nobody else has."""

Key = tuple[int, int]
"""A process: its pid, and when it started."""


class ProcessStat(NamedTuple):
    """A line of ``/proc/<pid>/stat``."""

    pid: int
    parent: int
    start: int
    """Ticks since boot."""
    own: int
    """Ticks of CPU time."""
    waited: int
    """Ticks of its children that have ended and were waited for, and of theirs."""
    resident: int
    """Bytes."""
    stack: int
    """Where the stack begins: the same for a process and what it forked, another after an exec."""

    @property
    def key(self) -> Key:
        return self.pid, self.start


class ProcessTree:
    """Finds the processes; those that are not ours are read only when they are new."""

    def __init__(self, root: int, variables: Collection[bytes] = (), proc: str = "/proc") -> None:
        self.root = root
        self._variables = frozenset(variables)
        self._proc = proc
        self._members: dict[int, ProcessStat] = {}
        self._strangers: set[int] = set()
        self._peers: set[Key] = set()
        self._samples = 0

    def sample(self) -> dict[int, ProcessStat]:
        """Return the processes, zombies included, by pid."""
        if self._samples % _SAMPLES_PER_SCAN == 0:
            self._strangers.clear()
        self._samples += 1
        present = {int(e.name) for e in os.scandir(self._proc) if e.name.isdigit()}
        table = {}
        for pid in present - self._strangers:
            if found := read_process(pid, self._proc):
                table[pid] = found
        self._members = self._find(table)
        self._strangers = present - self._members.keys()
        return self._members

    def roots(self) -> list[int]:
        """Return the root process and the other ranks of its launch."""
        return [self.root, *(pid for pid, _ in self._peers)]

    def _find(self, table: Mapping[int, ProcessStat]) -> dict[int, ProcessStat]:
        before = {process.key for process in self._members.values()}
        # What was ours stays ours when its parent has died and init takes it.
        known = [pid for pid, process in table.items() if process.key in before]
        found = _below([self.root, *known], table)
        if not self._variables:
            return found
        peers = [pid for pid in table.keys() - found.keys() if self._is_peer(pid)]
        found |= _below(peers, table)
        self._peers |= {table[pid].key for pid in peers}
        self._peers &= {process.key for process in found.values()}
        return found

    def _is_peer(self, pid: int) -> bool:
        return self._variables <= set(_environment(pid, self._proc))


def launch_variables(pid: int | str = "self", proc: str = "/proc") -> list[bytes]:
    """Return the variables by which the other ranks of this launch on this node are recognised.

    They are read from ``environ``, which shows how they were when the process started.
    """
    wanted = tuple(f"{name}=".encode() for name in _LAUNCH_VARIABLES)
    return [entry for entry in _environment(pid, proc) if entry.startswith(wanted)]


class UsageCounter:
    """How much a process tree used of something since the last call, though processes start and end.

    The count of a process that ended is added to that of the parent that waited for it. So the known
    counts of ended processes are subtracted from what parents inherited.
    """

    def __init__(self) -> None:
        self._before: dict[Key, tuple[int, int]] = {}
        self._when = 0.0

    def increase(self, counts: Mapping[Key, tuple[int, int]], now: float | None = None) -> int:
        """Return the increase. ``counts``: own and inherited, by process. ``now``: ticks since boot."""
        now = time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS if now is None else now
        own = inherited = 0
        for key, (mine, theirs) in counts.items():
            # A process that is older than the last sample but was not in it has only been found now.
            born_since = bool(self._when) and key[1] >= self._when - 1
            first = (0, 0) if born_since else (mine, theirs)
            old_mine, old_theirs = self._before.get(key, first)
            own += max(mine - old_mine, 0)
            inherited += max(theirs - old_theirs, 0)
        dead = sum(sum(self._before[key]) for key in self._before.keys() - counts.keys())
        self._before, self._when = dict(counts), now
        return own + max(inherited - dead, 0)


def read_process(pid: int, proc: str = "/proc") -> ProcessStat | None:
    """Return the process; None when it has ended."""
    try:
        with open(f"{proc}/{pid}/stat", "rb", buffering=0) as file:
            text = file.read()
    except OSError:
        return None
    # The name stands in brackets and may itself hold spaces and brackets.
    words = text[text.rfind(b")") + 2 :].split()
    return ProcessStat(
        pid=pid,
        parent=int(words[1]),
        start=int(words[19]),
        own=int(words[11]) + int(words[12]),
        waited=int(words[13]) + int(words[14]),
        resident=max(int(words[21]), 0) * PAGE,
        stack=int(words[25]),
    )


def _below(roots: Collection[int], table: Mapping[int, ProcessStat]) -> dict[int, ProcessStat]:
    children: dict[int, list[int]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process.pid)
    found: dict[int, ProcessStat] = {}
    queue = [pid for pid in roots if pid in table]
    while queue:
        pid = queue.pop()
        if pid not in found:
            found[pid] = table[pid]
            queue += children.get(pid, ())
    return found


def _environment(pid: int | str, proc: str) -> list[bytes]:
    try:
        with open(f"{proc}/{pid}/environ", "rb", buffering=0) as file:
            return file.readall().split(b"\0")
    except OSError:  # another user's, or gone
        return []


_ALLOWED = 0.0005
"""Seconds of CPU time for measuring, per second of wall time."""
_AT_FIRST = 0.2
_HUGE = 16 << 30
"""Bytes: old kernels hold up a process that maps memory for as long as they walk through its pages, so
a process of this size is measured only when it is new, has forked or is twice as large as it was."""
_NEVER = (0.0, 0)


class TreeMemory:
    """The memory of a process tree, without counting shared pages several times.

    Forked ranks and their workers share most of their memory: the sum of their sizes may be ten times
    the truth. The kernel knows the shares (``smaps_rollup``), but walks through all pages of a process
    for it: a second for 100 GB. So a process is measured when it is new, and now and then, within an
    allowance of CPU time; in between its size is taken, less what it was found to share.
    """

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._shared: dict[Key, int] = {}
        """Bytes of each process that are counted in another one."""
        self._measured: dict[Key, tuple[float, int]] = {}
        """When each process was measured, and its size then."""
        self._credit = _AT_FIRST
        self._when = time.monotonic()

    def bytes(self, members: Mapping[int, ProcessStat]) -> int:
        """Return the bytes in use now."""
        keys = {process.key for process in members.values()}
        self._shared = {key: value for key, value in self._shared.items() if key in keys}
        self._measured = {key: value for key, value in self._measured.items() if key in keys}
        new = [process for process in members.values() if process.key not in self._shared]
        for process in new:
            self._shared[process.key] = self._estimate_shared(process, members.get(process.parent))
            # Its parent now shares pages with it, and must be measured again.
            if parent := members.get(process.parent):
                self._measured.pop(parent.key, None)
        self._measure(members.values())
        return sum(max(p.resident - self._shared[p.key], 0) for p in members.values())

    def _measure(self, members: Iterable[ProcessStat]) -> None:
        """Measure the processes that were not measured for longest, while the allowance lasts."""
        now = time.monotonic()
        self._credit = min(self._credit + (now - self._when) * _ALLOWED, _AT_FIRST)
        self._when = now
        for process in sorted(members, key=lambda each: self._measured.get(each.key, _NEVER)):
            if self._credit <= 0:
                break
            _, size = self._measured.get(process.key, _NEVER)
            if _HUGE < process.resident < 2 * size:
                continue
            began = time.thread_time()
            share = self._share(process.pid)
            if share is not None:
                self._shared[process.key] = max(process.resident - share, 0)
            self._measured[process.key] = now, process.resident
            self._credit -= time.thread_time() - began

    def _share(self, pid: int) -> int | None:
        """Return its proportional share (Pss): pages of three processes count a third."""
        try:
            with open(f"{self._proc}/{pid}/smaps_rollup", "rb", buffering=0) as file:
                text = file.readall()
        except OSError:  # gone, not ours to see, or an old kernel
            return None
        at = text.find(b"\nPss:")
        return int(text[at + 5 :].split(None, 1)[0]) << 10 if at >= 0 else None

    def _estimate_shared(self, process: ProcessStat, parent: ProcessStat | None) -> int:
        if parent and process.stack and process.stack == parent.stack:
            return min(process.resident, parent.resident)  # forked: all of it was its parent's
        try:
            with open(f"{self._proc}/{process.pid}/statm", "rb", buffering=0) as file:
                return int(file.read().split()[2]) * PAGE
        except (OSError, IndexError):
            return 0
