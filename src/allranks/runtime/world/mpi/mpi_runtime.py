"""MPI of this process: started once, with the threads that it allows."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from allranks.errors import WorldError
from allranks.runtime.world.mpi import mpi_library as library
from allranks.runtime.world.mpi.mpi_work import PointWork, Worker

_LOOKS = 8
"""Messages asked about when one is posted: many may be under way, and each question costs."""


class Runtime:
    """MPI, and who may call it."""

    def __init__(self) -> None:
        self.worker = Worker("allranks-mpi")
        """Starts MPI, so that this thread is MPI's main thread where only that one may call."""
        self.mpi: Any = self.worker.call(library.load)
        self.multiple = bool(self.worker.call(self._threads))
        self.groups: weakref.WeakSet[Any] = weakref.WeakSet()
        self.farewell: Any = None
        """A communicator of all ranks, used once: when they end."""
        self.seconds = 0.0
        """The longest time limit that a group was given."""
        self.under_way: deque[PointWork] = deque()
        """Messages whose memory MPI may still use, though their sender may have dropped the Work."""

    def _threads(self) -> bool:
        """Whether every thread may call MPI; the error when not even ours may."""
        mpi = self.mpi
        level = mpi.Query_thread()
        if level == mpi.THREAD_MULTIPLE:
            return True
        if level == mpi.THREAD_SERIALIZED or (
            level == mpi.THREAD_FUNNELED and mpi.Is_thread_main()
        ):
            return False
        word = "MPI_THREAD_SINGLE" if level == mpi.THREAD_SINGLE else "MPI_THREAD_FUNNELED"
        raise WorldError(
            f"{library.described(mpi)} was started with {word}, but torch's collectives run in a "
            "thread of their own.\nCall init() before anything imports mpi4py.MPI, or set "
            "MPI4PY_RC_THREAD_LEVEL=multiple (mpi4py.rc.thread_level)."
        )

    def call(self, job: Callable[[], Any]) -> Any:
        """A short call of MPI, in a thread that may make it."""
        return job() if self.multiple else self.worker.call(job)

    def keep(self, message: PointWork) -> None:
        """Hold a message until MPI is done with it, and let go of some that are."""
        self.look_after(_LOOKS)
        self.under_way.append(message)

    def look_after(self, messages: int) -> None:
        """Ask MPI about the first few, and put those that are under way last.

        A deque needs no lock, which a callback that sends the next message would meet again.
        """
        with suppress(IndexError):  # another thread was faster
            for _ in range(min(messages, len(self.under_way))):
                message = self.under_way.popleft()
                if not message.test():
                    self.under_way.append(message)

    def worker_for_group(self) -> Worker:
        """A thread per group, so that groups do not wait for each other; one for all where MPI wants it."""
        return Worker("allranks-mpi-group") if self.multiple else self.worker


_runtime: Runtime | None = None


def runtime() -> Runtime:
    """MPI, started at the first call."""
    global _runtime
    if _runtime is None:
        _runtime = Runtime()
        from allranks.runtime.world.mpi import mpi_shutdown as ending

        ending.watch(_runtime)
    return _runtime
