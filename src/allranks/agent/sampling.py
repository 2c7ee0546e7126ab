"""The node is sampled from a thread beside the event loop, which it must not hold up.

It begins when the ranks have been forked, since a process with threads must not fork, and a moment
after that: loading what samples takes longer than a signal may wait to be passed on.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from allranks.agent.placement import Place

if TYPE_CHECKING:
    from allranks.measure.sampler import Sampler

_A_MOMENT = 0.2
_FAREWELL = 1.0


class Sampling:
    """Of the node on which an agent has started ``places``."""

    def __init__(
        self, folder: Path | None, places: list[Place], say: Callable[[str], None]
    ) -> None:
        self._folder = folder
        self._places = places
        self._say = say
        self._sampler: Sampler | None = None
        self._timer = threading.Timer(_A_MOMENT, self._begin)
        self._timer.daemon = True

    def start(self) -> None:
        """Soon. Signals stay blocked in the threads, as they are in the thread that calls this."""
        if self._folder is None:
            return
        try:
            self._timer.start()
        except RuntimeError as error:  # the system has no thread left for us
            self._say(f"allranks: the node is not sampled: {error}")

    def stop(self) -> None:
        """The last sample; nothing when it has not begun yet."""
        self._timer.cancel()
        if self._timer.is_alive():
            self._timer.join(_FAREWELL)
        if self._sampler:
            self._sampler.stop()

    def _begin(self) -> None:
        from allranks.measure.sampler import start_sampler

        assert self._folder is not None
        first = self._places[0]
        self._sampler = start_sampler(
            self._folder, first.node_rank, first.local_rank, first.local_size, os.getpid(),
            lambda text: self._say(f"allranks: {text}"),
            alone=len(self._places) == first.local_size,
        )  # fmt: skip
