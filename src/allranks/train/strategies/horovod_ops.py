"""Average gradients and combine optimizer steps with Horovod's operations."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

_NEVER = 1 << 30
"""backward_passes_per_step while gradients must not be sent."""

Named = Sequence[tuple[str, Tensor]]


class GradientAverager:
    """Gradients are sent during the backward pass and are averaged when it returns.

    ``hvd.DistributedOptimizer`` starts the operations and waits for them. It wraps an optimizer that never
    steps, so that the user's may be of any class and several may share a model.
    """

    def __init__(self, hvd: Any, named: Named, *, find_unused: bool, **options: Any) -> None:
        self.enabled = True
        """Whether the following backward passes average their gradients."""
        self._hvd = hvd
        self._parameters = [value for _, value in named]
        self._find_unused = find_unused and hvd.size() > 1
        warns = hvd.size() > 1 and hvd.rank() == 0 and not find_unused
        self._names = [name for name, _ in named] if warns else []
        """Names for the warning about unused parameters; empty after it or if there is none."""
        idle = torch.optim.SGD(self._parameters, lr=0.0)
        self._inner = hvd.DistributedOptimizer(idle, named_parameters=list(named), **options)
        self._inner.set_backward_passes_per_step(_NEVER)
        self._expected = self._queued = False
        self._hooks = [
            value.register_post_accumulate_grad_hook(self._on_gradient)
            for value in self._parameters
        ]

    def expect(self) -> None:
        """Prepare for the backward pass of a forward pass that begins now."""
        if self._expected is not self.enabled:
            self._expected = self.enabled
            self._inner.set_backward_passes_per_step(1 if self.enabled else _NEVER)

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()

    def _on_gradient(self, _: Tensor) -> None:
        """Register a callback for the end of the backward pass, at its first gradient."""
        if self._expected and not self._queued:
            self._queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)

    def _finish(self) -> None:
        self._queued = self._expected = False
        unused = self._unused() if self._find_unused else []
        self._warn_of_unused()
        self._inner.synchronize()
        self._inner.set_backward_passes_per_step(_NEVER)
        for value in unused:
            value.grad = None  # Horovod sets it to zeros, with which momentum would change weights

    def _warn_of_unused(self) -> None:
        """Warn once about parameters without a gradient: DDP would raise, Horovod uses zeros."""
        pairs = zip(self._names, self._parameters, strict=False)
        idle = [name for name, value in pairs if value.grad is None]
        self._names = []
        if idle:
            more = f" and {len(idle) - 1} more" if idle[1:] else ""
            print(
                f"allranks: {idle[0]}{more} got no gradient in the first step. Horovod uses zeros, with "
                "which weight decay still changes them. Freeze unused parameters, or use "
                "Horovod(find_unused_parameters=True).",
                file=sys.stderr,
            )

    def _unused(self) -> list[Tensor]:
        """Return the parameters without a gradient on any rank. Collective."""
        there = torch.tensor([value.grad is not None for value in self._parameters]).int()
        total = self._hvd.allreduce(there, name="allranks.used", op=self._hvd.Sum).tolist()
        return [value for value, count in zip(self._parameters, total, strict=True) if not count]


class AdasumSteps:
    """Adasum: each rank makes its own step, and the ranks' steps are combined.

    It works on the change of the weights, not on gradients, so that it suits Adam and similar optimizers.
    """

    def __init__(
        self, hvd: Any, optimizers: Sequence[Optimizer], named: Named, compression: Any
    ) -> None:
        self._hvd, self._compression = hvd, compression
        self._names = {id(value): name for name, value in named}
        self._before: dict[int, list[tuple[Tensor, Tensor]]] = {}
        self._hooks: list[Any] = []
        for optimizer in optimizers:
            self._hooks.append(optimizer.register_step_pre_hook(self._begin))
            self._hooks.append(optimizer.register_step_post_hook(self._end))

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()

    def _begin(self, optimizer: Optimizer, *_: Any) -> None:
        held = [value for group in optimizer.param_groups for value in group["params"]]
        mine = [value for value in held if id(value) in self._names]
        self._before[id(optimizer)] = [(value, value.detach().clone()) for value in mine]

    def _end(self, optimizer: Optimizer, *_: Any) -> None:
        pairs = self._before.pop(id(optimizer))
        with torch.no_grad():
            started = [self._start(value.detach().sub_(old), id(value)) for value, old in pairs]
            for (value, old), (handle, context) in zip(pairs, started, strict=True):
                step = self._compression.decompress(self._hvd.synchronize(handle), context)
                value.copy_(old.add_(step))

    def _start(self, step: Tensor, key: int) -> tuple[int, Any]:
        short, context = self._compression.compress(step)
        name = f"adasum.{self._names[key]}"
        return self._hvd.allreduce_async_(short, name=name, op=self._hvd.Adasum), context


def average_existing(hvd: Any, parameters: Iterable[Tensor], compression: Any) -> None:
    """Average the existing gradients, which must be the same ones on all ranks. Collective."""
    started = []
    for position, value in enumerate(parameters):
        if value.grad is None:
            continue
        name = f"allranks.gradient.{position}"
        if value.grad.is_sparse:
            gathered = hvd.sparse_allreduce_async(value.grad, name=name, op=hvd.Average)
            started.append((value, gathered, None))
            continue
        short, context = compression.compress(value.grad)
        handle = hvd.allreduce_async_(short, name=name, op=hvd.Average)
        started.append((value, handle, context))
    for value, handle, context in started:
        assert value.grad is not None
        if callable(handle):
            value.grad = handle()
        else:
            value.grad.copy_(compression.decompress(hvd.synchronize(handle), context))
