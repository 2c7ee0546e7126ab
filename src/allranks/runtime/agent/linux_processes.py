"""Linux interfaces for supervising processes: prctl, signalfd and ``/proc``."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
from collections.abc import Iterable
from typing import NamedTuple

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
SI_KERNEL = 0x80
"""``si_code`` of a signal that the terminal driver sent to its foreground group."""

_SIGNALFD_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC
_SIGINFO_SIZE = 128

_libc = ctypes.CDLL(None, use_errno=True)


class CaughtSignal(NamedTuple):
    """One signal that this process received."""

    number: int
    code: int


def become_subreaper() -> None:
    """Adopt orphans below this process, so that none escapes by a double fork."""
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies, however the parent dies."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # The parent may have died between fork and prctl: then no signal will ever come.
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)


def open_signals(numbers: Iterable[int]) -> int:
    """Block the signals and open a file descriptor that delivers them, with who sent them."""
    numbers = list(numbers)
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    mask = bytearray(128)
    for number in numbers:
        mask[(number - 1) // 8] |= 1 << ((number - 1) % 8)
    buffer = (ctypes.c_char * 128).from_buffer(mask)
    fd: int = _libc.signalfd(-1, buffer, _SIGNALFD_FLAGS)
    if fd < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"signalfd: {errno.errorcode.get(code, code)}")
    return fd


def read_signals(fd: int) -> list[CaughtSignal]:
    """Return every signal that is pending on the descriptor."""
    try:
        data = os.read(fd, 64 * _SIGINFO_SIZE)
    except BlockingIOError:
        return []
    found = []
    for at in range(0, len(data), _SIGINFO_SIZE):
        number = int.from_bytes(data[at : at + 4], "little")
        code = int.from_bytes(data[at + 8 : at + 12], "little", signed=True)
        found.append(CaughtSignal(number, code))
    return found


class ProcessEntry(NamedTuple):
    """What ``/proc/PID/stat`` holds."""

    pid: int
    parent: int
    session: int
    state: str


def processes() -> dict[int, ProcessEntry]:
    """Return every process that is visible from here."""
    table = {}
    for entry in os.scandir("/proc"):
        name = entry.name
        if name.isdigit() and (found := _read(int(name))):
            table[found.pid] = found
    return table


def _read(pid: int) -> ProcessEntry | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    # The command name is in parentheses and may itself hold spaces and parentheses.
    fields = text[text.rfind(b")") + 2 :].split()
    return ProcessEntry(pid, int(fields[1]), int(fields[3]), fields[0].decode())


def children() -> list[int] | None:
    """Return our direct children, zombies too; None where the kernel has no such list."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return None


def descendants(root: int) -> list[int]:
    """Return the running processes below ``root``, without zombies."""
    below = _by_parent()
    found, queue = [], [root]
    while queue:
        for child in below.get(queue.pop(), ()):
            queue.append(child.pid)
            if child.state not in "ZX":
                found.append(child.pid)
    return found


def agents_below(root: int) -> list[int]:
    """Return the agents that ``root`` is or has started, the topmost on each branch."""
    below = _by_parent()
    found, queue = [], [root]
    while queue:
        pid = queue.pop()
        if _is_agent(pid):
            found.append(pid)  # below it are its ranks
        else:
            queue.extend(child.pid for child in below.get(pid, ()))
    return found


def _by_parent() -> dict[int, list[ProcessEntry]]:
    table: dict[int, list[ProcessEntry]] = {}
    for process in processes().values():
        table.setdefault(process.parent, []).append(process)
    return table


def _is_agent(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
    except OSError:
        return False
    # A launcher's command line has the agent's words too, but not first.
    return words[1:3] == [b"-m", b"allranks.runtime.agent"]


def send(pids: Iterable[int], number: int) -> None:
    """Signal each process that still exists."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue
