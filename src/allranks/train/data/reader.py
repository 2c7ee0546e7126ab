"""Reading one stream: what was looked at beforehand first, and only the batches of this rank's turn."""

from __future__ import annotations

from collections import deque
from contextlib import nullcontext
from itertools import islice
from typing import Any

from allranks.train.data.digest import fingerprint
from allranks.train.data.random_state import OwnRandomState

END: Any = object()
_LOOK = 2


class Reader:
    """One pass over a stream."""

    def __init__(
        self, source: Any, state: OwnRandomState | None, own: OwnRandomState | None = None
    ) -> None:
        """Read with the random numbers of ``state``, and once the stream is this rank's, of ``own``."""
        self._state: Any = state or nullcontext()
        self._own: Any = own or nullcontext()
        with self._state:
            self._items = iter(source)
        self._looked: deque[Any] = deque()
        self._every = 1
        self._wait = 0
        self.last: Any = END
        """The batch to repeat: the last of this rank, or else any that was read."""

    def prints(self) -> list[int]:
        """Fingerprints of the first batches, which stay to be read."""
        with self._state:
            self._looked.extend(islice(self._items, _LOOK))
        return [fingerprint(batch) for batch in self._looked]

    def turn(self, rank: int, size: int, shared: bool) -> None:
        """Whether to take the batches i % size == rank only, or (with an own stream) all."""
        self._every, self._wait = (size, rank) if shared else (1, 0)
        if not shared:
            self._state = self._own

    def leave_out(self, batches: int) -> None:
        """Read so many batches of the stream and forget them."""
        with self._state:
            for _ in range(batches):
                passed = self._pop()
                self.last = self.last if passed is END else passed

    def next(self) -> Any:
        """The next batch of this rank, or END."""
        with self._state:
            for _ in range(self._wait):
                passed = self._pop()
                if passed is END:
                    return END
                self.last = passed if self.last is END else self.last
            self._wait = self._every - 1
            batch = self._pop()
        if batch is not END:
            self.last = batch
        return batch

    def _pop(self) -> Any:
        return self._looked.popleft() if self._looked else next(self._items, END)
