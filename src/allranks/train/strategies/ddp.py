"""DistributedDataParallel: every rank holds the model; gradients are averaged during the backward pass."""

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
from allranks.train.strategies.module_wrapping import move_state, state_tensors
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

    def wrap_model(self, optimizers: Sequence[Optimizer]) -> nn.Module:
        self._require_group()
        target = self.target.to(self.device)
        if not any(value.requires_grad for value in target.parameters()):
            raise UsageError(
                "The model has no trainable parameter (requires_grad), so ddp has nothing to average. "
                "Unfreeze some, or use one process."
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
        """Prepare a forward pass; only the last one of a step averages gradients over the ranks."""
        if (
            self.wrapped.require_backward_grad_sync is not last
        ):  # setting an attribute of a module is slow
            self.wrapped.require_backward_grad_sync = last

    def reduce_gradients(self, parameters: Iterable[Any]) -> None:
        """Average the gradients of a backward pass that did not average them. Collective."""
        average_gradients(parameters, self.world.size)

    def describe(self) -> str:
        """Return one line for the banner."""
        return f"{super().describe()}, gradients in {BUCKET_BYTES // 2**20} MiB buckets"


def _has_moving_buffers(module: nn.Module) -> bool:
    """Return whether a buffer may change in a forward pass and be used in the next.

    The statistics of batch norms are only used by validation, which syncs them, and buffers that are not
    saved are constant tables: neither needs to be sent in every step.
    """
    return any(
        name not in part._non_persistent_buffers_set and value is not None
        for part in module.modules()
        if not isinstance(part, _BatchNorm)
        for name, value in part._buffers.items()
    )
