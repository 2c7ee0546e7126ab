"""The end of a rank. MPI's own end waits for all ranks, so one that fails must not go that way.

A rank that fails ends the job instead: with its own exit code where our agent watches (it records the
error and ends the others), through MPI_Abort elsewhere. A rank that is done waits for the others first,
within a limit: an exit handler cannot see a ``raise SystemExit(3)``, so it may have failed after all.
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

SHORT = 5.0
"""Seconds for calls under way when this rank fails: they may wait for ranks that wait for us."""
_POLL = 0.01
_INTERRUPTED = 130
_asked: object = None
"""What sys.exit was last given: the interpreter does not tell it to exit handlers."""


def watch(runtime: Runtime) -> None:
    """Look after the end of this process."""
    before = sys.exit

    def leave(status: object = None, /) -> NoReturn:
        _note(status)
        before(status)  # type: ignore[arg-type]

    sys.exit = leave
    _watch_quitters()
    atexit.register(_at_exit, runtime, os.getpid())


def _watch_quitters() -> None:
    """The builtins exit() and quit(), which raise SystemExit themselves."""
    quitter: Any = type(getattr(builtins, "exit", None))
    if quitter.__module__ != "_sitebuiltins":  # python -S, IPython
        return
    before = quitter.__call__

    def leave(self: Any, code: object = None) -> NoReturn:
        _note(code)
        before(self, code)
        raise SystemExit(code)

    quitter.__call__ = leave


def _note(status: object) -> None:
    """Elsewhere than in the main thread it ends that thread alone."""
    global _asked
    if _in_main_thread():
        _asked = status


def went_on() -> None:
    """User code communicates: forget a sys.exit that it caught. Within its ``finally`` it still holds."""
    global _asked
    if _asked is not None and _in_main_thread() and not isinstance(sys.exc_info()[1], SystemExit):
        _asked = None


def closing() -> None:
    """User code ends a group. In a ``finally`` the SystemExit on its way can be seen, however raised."""
    error = sys.exc_info()[1]
    if isinstance(error, SystemExit):
        _note(error.code)
    else:
        went_on()


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _at_exit(runtime: Runtime, owner: int) -> None:
    mpi = runtime.mpi
    if os.getpid() != owner or mpi.Is_finalized():
        return
    alone = mpi.COMM_WORLD.Get_size() == 1
    code = exit_code()
    if code and not alone:
        _end_the_job(mpi, code)
    # Who closed the groups has said that no rank waits for it: one rank may work on alone for hours.
    limit = runtime.seconds if any(not each.closed for each in runtime.groups) else None
    if not _closed(runtime, SHORT if code else None) and not alone:
        sys.stderr.write("allranks: this rank ends while MPI is still in a call: ending the job.\n")
        _end_the_job(mpi, 1)
    if not alone:
        _wait_for_all(runtime, limit)
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


def _closed(runtime: Runtime, seconds: float | None) -> bool:
    """End the groups that nobody ended; False when one is stuck."""
    if work.late:
        return False
    for group in list(runtime.groups):
        group.close(seconds)
    return not any(group.stuck for group in runtime.groups)


def _wait_for_all(runtime: Runtime, limit: float | None) -> None:
    """Until every rank has come to its end; past the limit the job ends, as others may wait for us."""
    try:
        if _all_came(runtime, limit):
            return
    except KeyboardInterrupt:
        _end_the_job(runtime.mpi, _INTERRUPTED)
    # The code of a SystemExit that was raised by hand is unknown here, so it becomes 1.
    sys.stderr.write(
        f"allranks: this rank has ended, but not all others within {limit:g} s: ending the job.\n"
        "Where one rank works on alone for longer, call allranks.shutdown() or "
        "destroy_process_group() on all ranks before.\n"
    )
    _end_the_job(runtime.mpi, 1)


def _all_came(runtime: Runtime, limit: float | None) -> bool:
    """MPI's own end would spin on a core; this sleeps, and sends on what is still to be sent."""
    if runtime.farewell is None:
        return True
    deadline = None if limit is None else time.monotonic() + limit
    request = runtime.call(runtime.farewell.Ibarrier)
    pause = _POLL / 100
    while not runtime.call(request.Test):
        if deadline is not None and time.monotonic() > deadline:
            return False
        runtime.look_after(len(runtime.under_way))
        time.sleep(pause)
        pause = min(pause * 2, _POLL / 20 if runtime.under_way else _POLL)
    return True


def _end_the_job(mpi: Any, code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    if not _agent_watches():
        mpi.COMM_WORLD.Abort(code)  # comes back where the launcher is to end us, as srun is
    os._exit(code)


def _agent_watches() -> bool:
    """Whether our agent started this process: it ends the others, and needs time to tell the error."""
    try:
        return b"allranks.runtime.agent" in Path(f"/proc/{os.getppid()}/cmdline").read_bytes()
    except OSError:
        return False
