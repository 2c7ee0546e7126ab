"""Loader workers survive when Slurm signals every process of a step.

A DataLoader that loses a worker raises an error while the rank saves and exits, and the
checkpoint is lost. But the rank itself ends a worker that hangs by TERM, so TERM cannot be ignored: a
worker accepts TERM from its parent only. PyTorch's own handler checks the sender as well, but exits when
it is another process.
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

from allranks.runtime.preemption.signal_flags import STOP_SIGNALS

_LOOP = "torch.utils.data._utils.worker"
_LOADER = "torch.utils.data.dataloader"
_replaced: list[Callable[..., Any]] = []


def shield_workers() -> None:
    """Make every DataLoader of this process start shielded workers, by fork or by spawn."""
    module: Any = sys.modules.get(_LOOP)
    if _replaced or getattr(module, "_worker_loop", worker_loop) is worker_loop:
        return
    _replaced.append(module._worker_loop)
    module._worker_loop = worker_loop
    kind = getattr(sys.modules.get(_LOADER), "_MultiProcessingDataLoaderIter", None)
    if kind is not None:
        kind.__init__ = _block_signals_during(kind.__init__)


def _block_signals_during(start: Callable[..., None]) -> Callable[..., None]:
    """Start workers with the signals blocked: one may come before they are shielded."""

    @functools.wraps(start)
    def start_blocked(self: Any, loader: Any, *args: Any, **options: Any) -> None:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            _start_tracker(loader)
            signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
            start(self, loader, *args, **options)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    return start_blocked


def _start_tracker(loader: Any) -> None:
    """Start the tracker that spawned workers need; that unblocks TERM, so it comes before them."""
    import multiprocessing
    from multiprocessing import resource_tracker

    context = getattr(loader, "multiprocessing_context", None) or multiprocessing
    if context.get_start_method() != "fork":
        resource_tracker.ensure_running()


def worker_loop(*args: Any, **options: Any) -> Any:
    """Run PyTorch's loop in a shielded worker. A spawned worker imports this by its name."""
    from multiprocessing import parent_process

    parent = parent_process()
    shield_process(os.getppid() if parent is None or parent.pid is None else parent.pid)
    loop = _replaced[0] if _replaced else importlib.import_module(_LOOP)._worker_loop
    return loop(*args, **options)


def shield_process(parent: int) -> None:
    """Block the signals in this process; a thread receives them and checks who sent them."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    threading.Thread(target=_receive, args=(parent,), daemon=True, name="allranks signals").start()


def _receive(parent: int) -> None:
    while True:
        signal_info = signal.sigwaitinfo(STOP_SIGNALS)
        if signal_info.si_signo == signal.SIGTERM and signal_info.si_pid == parent:
            os._exit(0)
