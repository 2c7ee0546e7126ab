"""How much memory the processes of a tree hold together, without counting shared pages many times.

Forked ranks and their workers share most of what they seem to hold: the sum of their sizes may be ten
times the truth. The kernel knows the shares (``smaps_rollup``), but walks through all pages of a process
to tell them: a second for 100 GB. So a process is asked when it is new, and now and then, within an
allowance of time; in between its size is taken, less what it was found to share.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from allranks.runtime.telemetry.process_tree import PAGE, Key, Process

_ALLOWED = 0.0005
"""Seconds of CPU time for each second that passes."""
_AT_FIRST = 0.2
_HUGE = 16 << 30
"""Bytes: old kernels hold up a process that maps memory for as long as they walk through its pages, so
that one of this size is asked only when it is new, has forked or is twice as large as it was."""
_NEVER = (0.0, 0)


class Held:
    """The memory of a tree."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._shared: dict[Key, int] = {}
        """Bytes of each process that are counted elsewhere."""
        self._asked: dict[Key, tuple[float, int]] = {}
        """When each process was asked, and its size then."""
        self._credit = _AT_FIRST
        self._when = time.monotonic()

    def bytes(self, members: Mapping[int, Process]) -> int:
        """Now."""
        keys = {process.key for process in members.values()}
        self._shared = {key: value for key, value in self._shared.items() if key in keys}
        self._asked = {key: value for key, value in self._asked.items() if key in keys}
        new = [process for process in members.values() if process.key not in self._shared]
        for process in new:
            self._shared[process.key] = self._guess(process, members.get(process.parent))
            # What it shares with it, its parent does not hold alone any more.
            if parent := members.get(process.parent):
                self._asked.pop(parent.key, None)
        self._ask(members.values())
        return sum(max(p.resident - self._shared[p.key], 0) for p in members.values())

    def _ask(self, members: Iterable[Process]) -> None:
        """The kernel, for those that were not asked for longest, while the allowance lasts."""
        now = time.monotonic()
        self._credit = min(self._credit + (now - self._when) * _ALLOWED, _AT_FIRST)
        self._when = now
        for process in sorted(members, key=lambda each: self._asked.get(each.key, _NEVER)):
            if self._credit <= 0:
                break
            _, size = self._asked.get(process.key, _NEVER)
            if _HUGE < process.resident < 2 * size:
                continue
            began = time.thread_time()
            share = self._share(process.pid)
            if share is not None:
                self._shared[process.key] = max(process.resident - share, 0)
            self._asked[process.key] = now, process.resident
            self._credit -= time.thread_time() - began

    def _share(self, pid: int) -> int | None:
        """Its part of the pages that it has: those of three processes count a third."""
        try:
            with open(f"{self._proc}/{pid}/smaps_rollup", "rb", buffering=0) as file:
                text = file.readall()
        except OSError:  # gone, not ours to see, or an old kernel
            return None
        at = text.find(b"\nPss:")
        return int(text[at + 5 :].split(None, 1)[0]) << 10 if at >= 0 else None

    def _guess(self, process: Process, parent: Process | None) -> int:
        if parent and process.stack and process.stack == parent.stack:
            return min(process.resident, parent.resident)  # forked: all of it was its parent's
        try:
            with open(f"{self._proc}/{process.pid}/statm", "rb", buffering=0) as file:
                return int(file.read().split()[2]) * PAGE
        except (OSError, IndexError):
            return 0
