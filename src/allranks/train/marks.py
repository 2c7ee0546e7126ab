"""What the time of a step goes to, by marks inside of it: forward, backward, communication, optimizer.

Only some steps are marked (see `sampling`). On a CPU a mark is a look at the clock. On a GPU it is an event
on the stream, read after the device has long passed it, so that no step waits for one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

MARKED = ("forward", "backward", "communication", "optimizer")
"""The phases of a step that marks tell apart."""

MOST = 256
"""Marked steps that are kept for the next log."""
Piece = tuple[str, Any, Any]
"""A phase, its first mark and its last."""


class Marks:
    """The marks of one rank, step after step."""

    def __init__(self, device: torch.device, *, shares: bool) -> None:
        """``shares``: other ranks' gradients are waited for at the end of the backward pass."""
        self._on_gpu = device.type == "cuda"
        self._shares = shares
        self._last: Any = None
        self._made: Any = None
        """Where the last gradient of this rank's own was done, in the backward pass under way."""
        self._step: list[Piece] = []
        self._unread: deque[list[Piece]] = deque(maxlen=MOST)
        self.listener: Callable[[str], None] | None = None
        """Is told of the end of every phase, as it ends."""

    def _now(self) -> Any:
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def begin(self) -> None:
        """A batch begins; several may make a step."""
        self._last = self._now()

    def end(self, phase: str) -> None:
        """What was done since the mark before belongs to this phase."""
        now = self._now()
        self._step.append((phase, self._last, now))
        self._last = now
        if self.listener is not None:
            self.listener(phase)

    def watched(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss to call ``backward`` of, which notes where this rank's own gradients are done.

        The engine calls what was queued in a backward pass in that order, after all gradients. DDP, FSDP
        and Horovod queue their waiting for the other ranks when gradients come up; ours is queued before,
        at the very first node, which a view of the loss is for sure.
        """
        if not self._shares or not loss.requires_grad:
            return loss
        view = loss.view_as(loss)
        view.register_hook(self._queue)
        return view

    def _queue(self, _: torch.Tensor) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(self._note_made)

    def _note_made(self) -> None:
        self._made = self._now()

    def end_backward(self) -> None:
        """``backward`` has returned: what it waited for after the own gradients is communication."""
        if self._made is not None:
            self._step.append(("backward", self._last, self._made))
            self._last, self._made = self._made, None
            self.end("communication")
        else:
            self.end("backward")

    def close(self) -> None:
        """The step is whole."""
        self._unread.append(self._step)
        self._step = []

    def forget(self) -> None:
        """The steps marked so far are not like those to come."""
        self._step, self._made = [], None
        self._unread.clear()

    def read(self, *, wait: bool = False) -> list[dict[str, float]]:
        """Seconds of each phase, of every marked step that the device is done with.

        ``wait`` for the others, too.
        """
        found = []
        while self._unread and (wait or self._is_past(self._unread[0][-1][2])):
            seconds = dict.fromkeys(MARKED, 0.0)
            for phase, first, last in self._unread.popleft():
                seconds[phase] += self._seconds(first, last)
            found.append(seconds)
        return found

    def _is_past(self, mark: Any) -> bool:
        return not self._on_gpu or bool(mark.query())

    def _seconds(self, first: Any, last: Any) -> float:
        if not self._on_gpu:
            return float(last - first)
        last.synchronize()
        return float(first.elapsed_time(last)) / 1000
