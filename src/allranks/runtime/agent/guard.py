"""What still works when the agent itself is killed with ``kill -9``.

The kernel kills the ranks then (PR_SET_PDEATHSIG), but not what the ranks had started: DataLoader
workers, compilers, a tokenizer server. The guard is a tiny process, forked before anything large is
imported, that waits for the end of a pipe only the agent holds open. Every rank leads a session of
its own, so the guard needs to know nothing but those session numbers.
"""

from __future__ import annotations

import os
import signal

from allranks.runtime.agent.linux_processes import processes, send

_BLOCK_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class Guard:
    """The agent's end of the pipe."""

    def __init__(self) -> None:
        reader, self.fd = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.fd)
            _watch(reader)
            os._exit(0)
        os.close(reader)

    def watch(self, session: int) -> None:
        """Tell the guard of a rank that started."""
        os.write(self.fd, b"%d\n" % session)

    def dismiss(self) -> None:
        """All ended well: nothing is left to kill."""
        os.write(self.fd, b"done\n")
        os.close(self.fd)
        os.waitpid(self.pid, 0)


def _watch(reader: int) -> None:
    os.setsid()
    for number in _BLOCK_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    _let_go_of_output()
    told = b""
    while chunk := os.read(reader, 4096):
        told += chunk
    words = told.split()
    if b"done" in words:
        return
    sessions = {int(word) for word in words}
    # Twice: a process may fork while we walk through /proc.
    for _ in range(2):
        send([p.pid for p in processes().values() if p.session in sessions], signal.SIGKILL)


def _let_go_of_output() -> None:
    """Whoever reads the agent's output must see its end when the agent is gone, not when we are."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)
