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

_TESTS_PER_MESSAGE = 8
"""How many pending messages are tested when one is posted: each test costs."""


class Runtime:
    """MPI, and the threads that may call it."""

    def __init__(self) -> None:
        self.worker = Worker("allranks-mpi")
        """Starts MPI, so that this thread is MPI's main thread where only that one may call."""
        self.mpi: Any = self.worker.call(library.load_mpi4py)
        self.multiple = bool(self.worker.call(self._threads))
        self.groups: weakref.WeakSet[Any] = weakref.WeakSet()
        self.exit_communicator: Any = None
        """A communicator of all ranks, used once: when they end."""
        self.seconds = 0.0
        """The longest time limit that a group was given."""
        self.pending: deque[PointWork] = deque()
        """Messages whose memory MPI may still use, though the caller may have dropped the Work."""

    def _threads(self) -> bool:
        """Whether every thread may call MPI; an error when not even ours may."""
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
            f"{library.describe_library(mpi)} was started with {word}, but torch's collectives run in a "
            "thread of their own.\nCall init() before anything imports mpi4py.MPI, or set "
            "MPI4PY_RC_THREAD_LEVEL=multiple (mpi4py.rc.thread_level)."
        )

    def call(self, job: Callable[[], Any]) -> Any:
        """Make a short MPI call in a thread that may make it."""
        return job() if self.multiple else self.worker.call(job)

    def keep(self, message: PointWork) -> None:
        """Keep a message until MPI is done with it, and drop some that are."""
        self.test_pending(_TESTS_PER_MESSAGE)
        self.pending.append(message)

    def test_pending(self, messages: int) -> None:
        """Test the first few messages, and move those that are not done to the end.

        A deque needs no lock, which a callback that sends the next message would take again.
        """
        with suppress(IndexError):  # another thread was faster
            for _ in range(min(messages, len(self.pending))):
                message = self.pending.popleft()
                if not message.test():
                    self.pending.append(message)

    def worker_for_group(self) -> Worker:
        """Return a thread per group, so that groups do not wait for each other; one for all where MPI requires it."""
        return Worker("allranks-mpi-group") if self.multiple else self.worker
