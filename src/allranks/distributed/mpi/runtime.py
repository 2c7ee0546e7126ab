"""MPI of this process: started once, with the threads that it allows."""

from __future__ import annotations

import weakref
from typing import Any

from allranks.distributed.mpi import library
from allranks.distributed.mpi.work import Worker
from allranks.errors import WorldError


class Runtime:
    """MPI, and who may call it."""

    def __init__(self) -> None:
        self.worker = Worker("allranks-mpi")
        """Starts MPI, so that this thread is MPI's main thread where only that one may call."""
        self.mpi: Any = self.worker.call(library.load)
        self.multiple = bool(self.worker.call(self._threads))
        self.groups: weakref.WeakSet[Any] = weakref.WeakSet()

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

    def worker_for_group(self) -> Worker:
        """A thread per group, so that groups do not wait for each other; one for all where MPI wants it."""
        return Worker("allranks-mpi-group") if self.multiple else self.worker


_runtime: Runtime | None = None


def runtime() -> Runtime:
    """MPI, started at the first call."""
    global _runtime
    if _runtime is None:
        _runtime = Runtime()
        from allranks.distributed.mpi import ending

        ending.watch(_runtime)
    return _runtime
