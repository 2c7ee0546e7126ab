"""The end of a rank. MPI's own end waits for all ranks, so one that fails must not go that way.

A rank that dies of an exception ends the job instead: with its own exit code where our agent watches (it
records the error and ends the others), through MPI_Abort elsewhere.
"""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

from allranks.distributed.mpi import work
from allranks.distributed.mpi.runtime import Runtime

_INTERRUPTED = 130
_asked: object = None
"""What sys.exit was last given: the interpreter does not tell it to exit handlers."""


def watch(runtime: Runtime) -> None:
    """Look after the end of this process."""
    before = sys.exit

    def leave(status: object = None, /) -> NoReturn:
        global _asked
        _asked = status
        before(status)  # type: ignore[arg-type]

    sys.exit = leave
    atexit.register(_at_exit, runtime, os.getpid())


def _at_exit(runtime: Runtime, owner: int) -> None:
    mpi = runtime.mpi
    if os.getpid() != owner or mpi.Is_finalized():
        return
    size = mpi.COMM_WORLD.Get_size()
    code = exit_code()
    if code and size > 1:
        _end_the_job(mpi, code)
    if not _closed(runtime) and size > 1:
        sys.stderr.write("allranks: this rank ends while MPI is still in a call: ending the job.\n")
        _end_the_job(mpi, 1)
    if not runtime.multiple:
        runtime.worker.call(mpi.Finalize)


def exit_code() -> int:
    """The code with which this process is about to end, as far as it can be told."""
    error = getattr(sys, "last_value", None)
    if error is not None and not hasattr(sys, "ps1"):
        return _INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    if isinstance(_asked, int):
        return _asked & 0xFF
    return 0 if _asked is None else 1


def _closed(runtime: Runtime) -> bool:
    """End the groups that nobody ended; False when one is stuck."""
    if work.late:
        return False
    for group in list(runtime.groups):
        group.shutdown()
    return not any(group.stuck for group in runtime.groups)


def _end_the_job(mpi: Any, code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    if not _agent_watches():
        mpi.COMM_WORLD.Abort(code)  # comes back where the launcher is to end us, as srun is
    os._exit(code)


def _agent_watches() -> bool:
    """Whether our agent started this process: it ends the others, and needs time to tell the error."""
    try:
        return b"allranks.agent" in Path(f"/proc/{os.getppid()}/cmdline").read_bytes()
    except OSError:
        return False
