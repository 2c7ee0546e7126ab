"""What the time of a step goes to: forward, backward, communication, optimizer.

Only some steps are measured (see `StepSampler`). On a CPU a time stamp is read from the clock. On a GPU it is
an event on the stream, read long after the device has passed it, so that no step waits for one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

PHASES = ("forward", "backward", "communication", "optimizer")
"""The phases of a step."""

MAX_STEPS = 256
"""Measured steps that are kept for the next log."""
PhaseSpan = tuple[str, Any, Any]
"""A phase, its start and its end."""


class PhaseTimer:
    """Measures the phases of this rank's steps."""

    def __init__(self, device: torch.device, *, waits_for_ranks: bool) -> None:
        """``waits_for_ranks``: the backward pass ends with waiting for other ranks' gradients."""
        self._on_gpu = device.type == "cuda"
        self._waits_for_ranks = waits_for_ranks
        self._last: Any = None
        self._made: Any = None
        """When this rank's own gradients were done, in the current backward pass."""
        self._step: list[PhaseSpan] = []
        self._unread: deque[list[PhaseSpan]] = deque(maxlen=MAX_STEPS)
        self.listener: Callable[[str], None] | None = None
        """Called with the name of every phase when it ends."""

    def _now(self) -> Any:
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def begin(self) -> None:
        """Start a batch; several may make a step."""
        self._last = self._now()

    def end(self, phase: str) -> None:
        """End this phase, which began where the last one ended."""
        now = self._now()
        self._step.append((phase, self._last, now))
        self._last = now
        if self.listener is not None:
            self.listener(phase)

    def hook_backward(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss to call ``backward`` on; it records when this rank's own gradients are done.

        The autograd engine runs queued callbacks in order, after all gradients. DDP, FSDP and Horovod queue
        their waiting for other ranks while gradients are computed; ours is queued before, at the very first
        node, which a view of the loss is for sure.
        """
        if not self._waits_for_ranks or not loss.requires_grad:
            return loss
        view = loss.view_as(loss)
        view.register_hook(self._queue)
        return view

    def _queue(self, _: torch.Tensor) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(self._note_made)

    def _note_made(self) -> None:
        self._made = self._now()

    def end_backward(self) -> None:
        """End the backward phase; the time after this rank's own gradients is communication."""
        if self._made is not None:
            self._step.append(("backward", self._last, self._made))
            self._last, self._made = self._made, None
            self.end("communication")
        else:
            self.end("backward")

    def end_step(self) -> None:
        """End the step."""
        self._unread.append(self._step)
        self._step = []

    def discard(self) -> None:
        """Drop what was measured: those steps were not like the ones to come."""
        self._step, self._made = [], None
        self._unread.clear()

    def read(self, *, wait: bool = False) -> list[dict[str, float]]:
        """Return the seconds of each phase, for every measured step that the device has finished.

        ``wait`` for the others, too.
        """
        found = []
        while self._unread and (wait or self._is_past(self._unread[0][-1][2])):
            seconds = dict.fromkeys(PHASES, 0.0)
            for phase, first, last in self._unread.popleft():
                seconds[phase] += self._seconds(first, last)
            found.append(seconds)
        return found

    def _is_past(self, event: Any) -> bool:
        return not self._on_gpu or bool(event.query())

    def _seconds(self, first: Any, last: Any) -> float:
        if not self._on_gpu:
            return float(last - first)
        last.synchronize()
        return float(first.elapsed_time(last)) / 1000
