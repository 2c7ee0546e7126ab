"""Signals that reach a process which started further ranks, passed on to them.

The ranks lead sessions of their own, so nothing but this process reaches them; only inside a Slurm step
does Slurm signal every process itself.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import FrameType
from typing import Any

from allranks.runtime.world.sources.slurm_tasks import step_id

_PASSED_ON = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class Forwarding:
    """From now on, each signal goes to the ranks first and then takes its course here."""

    def __init__(self, ranks: Callable[[], Iterable[int]]) -> None:
        self._ranks = ranks
        self._owner = os.getpid()
        self._before: dict[int, Any] = {
            number: signal.signal(number, self._pass_on) for number in _PASSED_ON
        }

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() == self._owner and step_id(os.environ) is None:
            for pid in self._ranks():
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
        before = self._before[number]
        if callable(before):
            before(number, frame)
        elif before != signal.SIG_IGN and signal.getsignal(number) == self._pass_on:
            # Nobody else handles it: it does to this process what it always did.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
