"""DistributedDataParallel: every rank holds the model, gradients are averaged while they are made."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from allranks.errors import UsageError
from allranks.train.strategies.base import MultiRankStrategy
from allranks.train.strategies.modules import move_state, state_tensors
from allranks.train.strategies.tensor_collectives import (
    BUCKET_BYTES,
    average_gradients,
    broadcast_tensors,
)

_BUFFERS = (  # torch 2.13 gave the option a new name
    "forward_sync_buffers"
    if "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    else "broadcast_buffers"
)


class DDP(MultiRankStrategy):
    """``DDP(find_unused_parameters=True)`` for models that leave parameters out of some steps."""

    name = "ddp"

    def _place(self, optimizers: Sequence[Optimizer]) -> nn.Module:
        self._require_group()
        target = self.target.to(self.device)
        if not any(value.requires_grad for value in target.parameters()):
            raise UsageError(
                "The model has no parameter that is trained (requires_grad): ddp has nothing to "
                "average. Unfreeze some, or use one process."
            )
        broadcast_tensors(target.buffers())  # DDP itself sends the parameters
        move_state(optimizers)
        broadcast_tensors(state_tensors(optimizers))
        on_gpu = self.device.type == "cuda"
        self.wrapped = DistributedDataParallel(
            target,
            device_ids=[self.device] if on_gpu else None,
            **{_BUFFERS: _has_moving_buffers(target)},
            find_unused_parameters=self.options.find_unused_parameters,
            gradient_as_bucket_view=True,
            bucket_cap_mb=BUCKET_BYTES // 2**20,
        )
        return self.wrapped

    def begin_micro_batch(self, last: bool) -> None:
        """Before each forward pass: whether the gradients of its backward pass are averaged."""
        if self.wrapped.require_backward_grad_sync is not last:  # a module's attributes are slow
            self.wrapped.require_backward_grad_sync = last

    def reduce_gradients(self, parameters: Iterable[Any]) -> None:
        """Average gradients that a backward pass without sharing left. Collective."""
        average_gradients(parameters, self.world.size)

    def describe(self) -> str:
        """One line for people."""
        return f"{super().describe()}, gradients in {BUCKET_BYTES // 2**20} MiB buckets"


def _has_moving_buffers(module: nn.Module) -> bool:
    """Whether a buffer may change in a forward pass and then be used in the next.

    Batch norms' statistics are used by validation alone, which syncs them, and what is not saved is
    a table: sending those in every step would gain nothing.
    """
    return any(
        name not in part._non_persistent_buffers_set and value is not None
        for part in module.modules()
        if not isinstance(part, _BatchNorm)
        for name, value in part._buffers.items()
    )
