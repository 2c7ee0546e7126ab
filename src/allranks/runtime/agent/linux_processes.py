"""What Linux offers to keep processes together: prctl, signalfd and ``/proc``."""

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


class Caught(NamedTuple):
    """One signal that reached the agent."""

    number: int
    code: int


def become_subreaper() -> None:
    """Orphans below us become our children, so that none can slip away by a double fork."""
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


def read_signals(fd: int) -> list[Caught]:
    """Every signal that waits on the descriptor."""
    try:
        data = os.read(fd, 64 * _SIGINFO_SIZE)
    except BlockingIOError:
        return []
    found = []
    for at in range(0, len(data), _SIGINFO_SIZE):
        number = int.from_bytes(data[at : at + 4], "little")
        code = int.from_bytes(data[at + 8 : at + 12], "little", signed=True)
        found.append(Caught(number, code))
    return found


class Process(NamedTuple):
    """A line of ``/proc``."""

    pid: int
    parent: int
    session: int
    state: str


def processes() -> dict[int, Process]:
    """Every process that we can see."""
    table = {}
    for entry in os.scandir("/proc"):
        name = entry.name
        if name.isdigit() and (found := _read(int(name))):
            table[found.pid] = found
    return table


def _read(pid: int) -> Process | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    # The name stands in brackets and may itself hold spaces and brackets.
    fields = text[text.rfind(b")") + 2 :].split()
    return Process(pid, int(fields[1]), int(fields[3]), fields[0].decode())


def children() -> list[int] | None:
    """Our direct children, zombies too; None where the kernel was built without that list."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return None


def descendants(root: int) -> list[int]:
    """The living processes below ``root``, zombies left out."""
    table = processes()
    children: dict[int, list[Process]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process)
    found, queue = [], [root]
    while queue:
        for child in children.get(queue.pop(), ()):
            queue.append(child.pid)
            if child.state not in "ZX":
                found.append(child.pid)
    return found


def agents_below(root: int) -> list[int]:
    """The agents of ours that ``root`` is or has started, each the first on its branch."""
    children: dict[int, list[int]] = {}
    for process in processes().values():
        children.setdefault(process.parent, []).append(process.pid)
    found, queue = [], [root]
    while queue:
        pid = queue.pop()
        if _is_agent(pid):
            found.append(pid)  # what is below are its ranks
        else:
            queue.extend(children.get(pid, ()))
    return found


def _is_agent(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
    except OSError:
        return False
    # A launcher has the agent's words among its own, but not first.
    return words[1:3] == [b"-m", b"allranks.runtime.agent"]


def send(pids: Iterable[int], number: int) -> None:
    """Signal each process that is still there."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue
