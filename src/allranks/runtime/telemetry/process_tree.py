"""The ranks and everything that they started, found in ``/proc``, and what they used since last time.

Ranks that one agent or a Trainer started are below it. Where every rank has an agent of its own (srun,
torchrun, mpirun), the others are recognised by the variables that their launcher gave to all of them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping
from typing import NamedTuple

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
_LOOK_AT_ALL = 20
"""Every so many times, processes that were not ours are read again: numbers are used again."""
_MARKS = (
    "ALLRANKS_ATTEMPT_DIR", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_NODEID", "TORCHELASTIC_RUN_ID",
    "GROUP_RANK", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "MASTER_PORT",
)  # fmt: skip
"""What launchers give to every rank of one launch on one node, and to nobody else."""

Key = tuple[int, int]
"""A process: its number, and when it began."""


class Process(NamedTuple):
    """A line of ``/proc/<pid>/stat``."""

    pid: int
    parent: int
    start: int
    """Ticks since the machine began."""
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


class Tree:
    """Finds the processes; those that are not ours are looked at only when they are new."""

    def __init__(self, root: int, marks: Collection[bytes] = (), proc: str = "/proc") -> None:
        self.root = root
        self._marks = frozenset(marks)
        self._proc = proc
        self._members: dict[int, Process] = {}
        self._strangers: set[int] = set()
        self._marked: set[Key] = set()
        self._looks = 0

    def look(self) -> dict[int, Process]:
        """The living processes (and those not yet waited for) by their number."""
        if self._looks % _LOOK_AT_ALL == 0:
            self._strangers.clear()
        self._looks += 1
        present = {int(e.name) for e in os.scandir(self._proc) if e.name.isdigit()}
        table = {}
        for pid in present - self._strangers:
            if found := read_process(pid, self._proc):
                table[pid] = found
        self._members = self._find(table)
        self._strangers = present - self._members.keys()
        return self._members

    def roots(self) -> list[int]:
        """The process that was named, and those with its marks."""
        return [self.root, *(pid for pid, _ in self._marked)]

    def _find(self, table: Mapping[int, Process]) -> dict[int, Process]:
        before = {process.key for process in self._members.values()}
        # What was ours stays ours when its parent has died and init takes it.
        known = [pid for pid, process in table.items() if process.key in before]
        found = _below([self.root, *known], table)
        if not self._marks:
            return found
        marked = [pid for pid in table.keys() - found.keys() if self._is_marked(pid)]
        found |= _below(marked, table)
        self._marked |= {table[pid].key for pid in marked}
        self._marked &= {process.key for process in found.values()}
        return found

    def _is_marked(self, pid: int) -> bool:
        return self._marks <= set(_environment(pid, self._proc))


def marks(pid: int | str = "self", proc: str = "/proc") -> list[bytes]:
    """The variables by which the other ranks of this launch on this node are recognised.

    As they were at the start of the process: the others' can be seen in no other way.
    """
    wanted = tuple(f"{name}=".encode() for name in _MARKS)
    return [entry for entry in _environment(pid, proc) if entry.startswith(wanted)]


class Used:
    """How much a tree used of something since the last call, though processes come and go.

    A process that ended takes its count along, into the count of whoever waited for it. So of what
    parents inherited, what was known of the dead is taken off; never more than was inherited.
    """

    def __init__(self) -> None:
        self._before: dict[Key, tuple[int, int]] = {}
        self._when = 0.0

    def since(self, counts: Mapping[Key, tuple[int, int]], now: float | None = None) -> int:
        """``counts``: of each process its own and what it inherited. ``now``: ticks since boot."""
        now = time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS if now is None else now
        own = inherited = 0
        for key, (mine, theirs) in counts.items():
            # One that is older than the last look and was not seen then has only been found now.
            born_since = bool(self._when) and key[1] >= self._when - 1
            first = (0, 0) if born_since else (mine, theirs)
            old_mine, old_theirs = self._before.get(key, first)
            own += max(mine - old_mine, 0)
            inherited += max(theirs - old_theirs, 0)
        dead = sum(sum(self._before[key]) for key in self._before.keys() - counts.keys())
        self._before, self._when = dict(counts), now
        return own + max(inherited - dead, 0)


def read_process(pid: int, proc: str = "/proc") -> Process | None:
    """None when it has ended."""
    try:
        with open(f"{proc}/{pid}/stat", "rb", buffering=0) as file:
            text = file.read()
    except OSError:
        return None
    # The name stands in brackets and may itself hold spaces and brackets.
    words = text[text.rfind(b")") + 2 :].split()
    return Process(
        pid=pid,
        parent=int(words[1]),
        start=int(words[19]),
        own=int(words[11]) + int(words[12]),
        waited=int(words[13]) + int(words[14]),
        resident=max(int(words[21]), 0) * PAGE,
        stack=int(words[25]),
    )


def _below(roots: Collection[int], table: Mapping[int, Process]) -> dict[int, Process]:
    children: dict[int, list[int]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process.pid)
    found: dict[int, Process] = {}
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
