"""End processes whose supervisor is gone: the guard of an agent, and the sweep of a whole launch.

When the agent is killed with ``kill -9``, the kernel kills its ranks (PR_SET_PDEATHSIG), but not what
the ranks had started: DataLoader workers, compilers, a tokenizer server. The guard is a tiny process,
forked before anything large is imported, that waits for the end of a pipe only the agent holds open.
Every rank leads a session of its own, so the guard needs to know only those session ids.

The sweep finds processes by the launch's id in their environment. The local scheduler calls it after
every launch: after a hard kill the parents are gone, and process groups identify nothing.
"""

from __future__ import annotations

import os
import signal
import time

from allranks.runtime.agent.linux_processes import processes, send

LAUNCH_ID = "ALLRANKS_LAUNCH_ID"
"""The variable with the id that all processes of a launch on this machine inherit."""
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_SWEEPS = 5


class GuardProcess:
    """The agent's end of the pipe to its guard."""

    def __init__(self) -> None:
        reader, self.fd = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.fd)
            _run_guard(reader)
            os._exit(0)
        os.close(reader)

    def watch(self, session: int) -> None:
        """Add the session of a rank that started."""
        os.write(self.fd, b"%d\n" % session)

    def dismiss(self) -> None:
        """End the guard: every rank has ended, and nothing is left to kill."""
        os.write(self.fd, b"done\n")
        os.close(self.fd)
        os.waitpid(self.pid, 0)


def _run_guard(reader: int) -> None:
    os.setsid()
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    _release_output()
    text = b""
    while chunk := os.read(reader, 4096):
        text += chunk
    words = text.split()
    if b"done" in words:
        return
    sessions = {int(word) for word in words}
    # Twice: a process may fork while we walk through /proc.
    for _ in range(2):
        send([p.pid for p in processes().values() if p.session in sessions], signal.SIGKILL)


def _release_output() -> None:
    """Close stdout and stderr: their reader must see the end when the agent ends, not the guard."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)


def new_launch_id() -> str:
    """Return an id for the processes of this launch on this machine."""
    return f"{os.getpid()}-{os.urandom(6).hex()}"


def launch_processes(launch: str) -> list[int]:
    """Return this user's processes that carry the launch id, without this process."""
    wanted = f"{LAUNCH_ID}={launch}".encode()
    found = []
    for entry in os.scandir("/proc"):
        name = entry.name
        if name.isdigit() and int(name) != os.getpid() and wanted in _environment(name):
            found.append(int(name))
    return found


def sweep(launch: str) -> list[int]:
    """Kill all processes of a launch; returns the process ids that were found."""
    if not launch:
        return []
    killed: list[int] = []
    # A process may fork while we walk through /proc: look again until a pass finds nothing.
    for _ in range(_SWEEPS):
        found = launch_processes(launch)
        if not found:
            break
        send(found, signal.SIGKILL)
        killed += [pid for pid in found if pid not in killed]
        time.sleep(0.05)
    return killed


def _environment(pid: str) -> list[bytes]:
    # As it was when the process was started by exec: a forked rank shows the agent's.
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            # Root can read everybody's.
            if os.fstat(file.fileno()).st_uid != os.getuid():
                return []
            return file.read().split(b"\0")
    except OSError:
        return []
