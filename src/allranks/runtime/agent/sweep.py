"""End every process of one launch on this machine, found by the session id in its environment.

For the local scheduler after a hard kill: parents are gone then, and process groups tell nothing.
"""

from __future__ import annotations

import os
import signal
import time

from allranks.runtime.agent.linux_processes import send

VARIABLE = "ALLRANKS_SESSION"
_ROUNDS = 5


def members(session: str) -> list[int]:
    """Processes of this user that carry the session id, ourselves left out."""
    wanted = f"{VARIABLE}={session}".encode()
    found = []
    for entry in os.scandir("/proc"):
        name = entry.name
        if name.isdigit() and int(name) != os.getpid() and wanted in _environment(name):
            found.append(int(name))
    return found


def sweep(session: str) -> list[int]:
    """Kill them all; returns the process ids that were found."""
    if not session:
        return []
    killed: list[int] = []
    # A process may fork while we walk through /proc: look again until a round finds nothing.
    for _ in range(_ROUNDS):
        found = members(session)
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
