"""The exit of a rank. MPI_Finalize waits for all ranks, so a rank that fails must not call it.

A rank that fails ends the job instead: with its own exit code under our agent (which records the error
and ends the others), through MPI_Abort elsewhere. A rank that is done waits for the others first, within
a limit: an exit handler cannot see a ``raise SystemExit(3)``, so it may have failed after all.
"""

from __future__ import annotations

import atexit
import builtins
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

from allranks.runtime.world.mpi import mpi_work as work
from allranks.runtime.world.mpi.mpi_runtime import Runtime

FAILURE_SECONDS = 5.0
"""Seconds for pending calls when this rank fails: they may wait for ranks that wait for us."""
_POLL = 0.01
_INTERRUPTED = 130
_exit_status: object = None
"""The argument of the last sys.exit: the interpreter does not pass it to exit handlers."""


def watch_exit(runtime: Runtime) -> None:
    """Handle the exit of this process."""
    before = sys.exit

    def exit_and_record(status: object = None, /) -> NoReturn:
        _record(status)
        before(status)  # type: ignore[arg-type]

    sys.exit = exit_and_record
    _watch_builtin_exit()
    atexit.register(_at_exit, runtime, os.getpid())


def _watch_builtin_exit() -> None:
    """The builtins exit() and quit(), which raise SystemExit themselves."""
    quitter: Any = type(getattr(builtins, "exit", None))
    if quitter.__module__ != "_sitebuiltins":  # python -S, IPython
        return
    before = quitter.__call__

    def call(self: Any, code: object = None) -> NoReturn:
        _record(code)
        before(self, code)
        raise SystemExit(code)

    quitter.__call__ = call


def _record(status: object) -> None:
    """Record an exit of the main thread; elsewhere it ends that thread alone."""
    global _exit_status
    if _in_main_thread():
        _exit_status = status


def forget_exit() -> None:
    """Forget a sys.exit that user code caught: it communicates again. In a ``finally`` it still counts."""
    global _exit_status
    if (
        _exit_status is not None
        and _in_main_thread()
        and not isinstance(sys.exc_info()[1], SystemExit)
    ):
        _exit_status = None


def record_pending_exit() -> None:
    """Record the SystemExit in whose ``finally`` user code closes a group, however it was raised."""
    error = sys.exc_info()[1]
    if isinstance(error, SystemExit):
        _record(error.code)
    else:
        forget_exit()


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _at_exit(runtime: Runtime, owner: int) -> None:
    mpi = runtime.mpi
    if os.getpid() != owner or mpi.Is_finalized():
        return
    alone = mpi.COMM_WORLD.Get_size() == 1
    code = exit_code()
    if code and not alone:
        _abort_job(mpi, code)
    # A script that closed its groups waits for nobody: one rank may work on alone for hours.
    limit = runtime.seconds if any(not each.closed for each in runtime.groups) else None
    if not _close_groups(runtime, FAILURE_SECONDS if code else None) and not alone:
        sys.stderr.write("allranks: this rank ends while MPI is still in a call: ending the job.\n")
        _abort_job(mpi, 1)
    if not alone:
        _wait_for_all(runtime, limit)
    if not runtime.multiple:
        runtime.worker.call(mpi.Finalize)


def exit_code() -> int:
    """Return the exit code of this process, as far as it is known."""
    error = getattr(sys, "last_value", None)
    if error is not None and not hasattr(sys, "ps1"):
        return _INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    if isinstance(_exit_status, int):
        return _exit_status & 0xFF
    return 0 if _exit_status is None else 1


def _close_groups(runtime: Runtime, seconds: float | None) -> bool:
    """Close the open groups; False when one is stuck."""
    if work.timed_out:
        return False
    for group in list(runtime.groups):
        group.close(seconds)
    return not any(group.stuck for group in runtime.groups)


def _wait_for_all(runtime: Runtime, limit: float | None) -> None:
    """Wait until every rank exits; after the limit abort the job, as others may wait for us."""
    try:
        if _all_exit(runtime, limit):
            return
    except KeyboardInterrupt:
        _abort_job(runtime.mpi, _INTERRUPTED)
    # The code of a SystemExit that was raised by hand is unknown here, so it becomes 1.
    sys.stderr.write(
        f"allranks: this rank has ended, but not all others within {limit:g} s: ending the job.\n"
        "Where one rank works on alone for longer, call allranks.shutdown() or "
        "destroy_process_group() on all ranks before.\n"
    )
    _abort_job(runtime.mpi, 1)


def _all_exit(runtime: Runtime, limit: float | None) -> bool:
    """Whether all ranks arrive. MPI_Finalize would spin on a core; this sleeps, and completes messages."""
    if runtime.exit_communicator is None:
        return True
    deadline = None if limit is None else time.monotonic() + limit
    request = runtime.call(runtime.exit_communicator.Ibarrier)
    pause = _POLL / 100
    while not runtime.call(request.Test):
        if deadline is not None and time.monotonic() > deadline:
            return False
        runtime.test_pending(len(runtime.pending))
        time.sleep(pause)
        pause = min(pause * 2, _POLL / 20 if runtime.pending else _POLL)
    return True


def _abort_job(mpi: Any, code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    if not _has_agent():
        mpi.COMM_WORLD.Abort(code)  # returns where the launcher ends us, as srun does
    os._exit(code)


def _has_agent() -> bool:
    """Whether our agent started this process: it ends the others, and needs time to report the error."""
    try:
        return b"allranks.runtime.agent" in Path(f"/proc/{os.getppid()}/cmdline").read_bytes()
    except OSError:
        return False
