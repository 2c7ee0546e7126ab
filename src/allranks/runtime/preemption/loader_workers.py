"""Loader workers live on when Slurm signals every process of a step.

A DataLoader that loses a worker raises an error in the middle of the rank's own clean end, and the
checkpoint is lost. But the rank itself ends a worker that hangs by TERM, so TERM cannot be ignored: a
worker takes TERM from its parent and from nobody else. PyTorch's own handler knows the sender as well;
it dies of everybody else's.
"""

from __future__ import annotations

import functools
import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from allranks.runtime.preemption.signal_flags import LEAVING

_LOOP = "torch.utils.data._utils.worker"
_LOADER = "torch.utils.data.dataloader"
_replaced: list[Callable[..., Any]] = []


def shield_workers() -> None:
    """Every DataLoader of this process starts shielded workers, however they are started."""
    module: Any = sys.modules.get(_LOOP)
    if _replaced or getattr(module, "_worker_loop", worker_loop) is worker_loop:
        return
    _replaced.append(module._worker_loop)
    module._worker_loop = worker_loop
    kind = getattr(sys.modules.get(_LOADER), "_MultiProcessingDataLoaderIter", None)
    if kind is not None:
        kind.__init__ = _holding_back(kind.__init__)


def _holding_back(start: Callable[..., None]) -> Callable[..., None]:
    """Workers are born with the signals held back: one may come before their shield is up."""

    @functools.wraps(start)
    def started(self: Any, loader: Any, *args: Any, **options: Any) -> None:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, LEAVING)
        try:
            _start_tracker(loader)
            signal.pthread_sigmask(signal.SIG_BLOCK, LEAVING)
            start(self, loader, *args, **options)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    return started


def _start_tracker(loader: Any) -> None:
    """What spawned workers need besides; starting it lets TERM through, so it comes before them."""
    import multiprocessing
    from multiprocessing import resource_tracker

    context = getattr(loader, "multiprocessing_context", None) or multiprocessing
    if context.get_start_method() != "fork":
        resource_tracker.ensure_running()


def worker_loop(*args: Any, **options: Any) -> Any:
    """What a worker runs: the shield, then PyTorch's loop. A spawned worker finds it by its name."""
    from multiprocessing import parent_process

    parent = parent_process()
    shield(os.getppid() if parent is None or parent.pid is None else parent.pid)
    loop = _replaced[0] if _replaced else importlib.import_module(_LOOP)._worker_loop
    return loop(*args, **options)


def shield(parent: int) -> None:
    """Hold the signals back in this process; a thread takes them and looks who sent them."""
    signal.pthread_sigmask(signal.SIG_BLOCK, LEAVING)
    threading.Thread(target=_take, args=(parent,), daemon=True, name="allranks signals").start()


def _take(parent: int) -> None:
    while True:
        caught = signal.sigwaitinfo(LEAVING)
        if caught.si_signo == signal.SIGTERM and caught.si_pid == parent:
            os._exit(0)
