"""`Strategy`: the interface between the training loop and DDP, FSDP, DeepSpeed and Horovod.

A strategy that steps the optimizer itself overrides `backward` and `step`; everything else has a default
for one process. `MultiRankStrategy` adds the defaults for several ranks.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from allranks.errors import UsageError, WorldError, did_you_mean
from allranks.runtime.world import World
from allranks.train.checkpoint.write_plan import FlatShard, is_shard
from allranks.train.strategies.module_wrapping import (
    check_initialized,
    checkpoint_activations,
    move_state,
    synchronize_batchnorm,
)
from allranks.train.strategies.named_state_dicts import TensorSource
from allranks.train.strategies.state_dict_mixin import StateAccess
from allranks.train.strategies.tensor_collectives import broadcast_tensors, clip_gradients


@dataclass(frozen=True)
class StrategyOptions:
    """Options of the training for its strategy; options given to the strategy itself take precedence."""

    precision: str = "fp32"
    """"fp32", "tf32", "bf16" or "fp16"."""
    sync_batchnorm: bool = False
    """Batch normalization over the batches of all ranks."""
    activation_checkpointing: bool | Sequence[str] = False
    """Recompute activations in the backward pass: True for the repeated blocks, or class names."""
    wrap: Sequence[str | type] | None = None
    """fsdp: classes whose instances are sharded one by one; None: the repeated blocks."""
    cpu_offload: bool = False
    """fsdp: shards, gradients and optimizer state are in CPU memory."""
    find_unused_parameters: bool = False
    """ddp: for models that do not use every parameter in every step."""
    accumulate: int = 1
    """Forward and backward passes per optimizer step."""
    clip_norm: float | None = None
    """The total norm to which gradients are clipped."""
    warmup_steps: int = 0
    """Steps of learning rate warm-up."""


class Strategy(StateAccess, ABC):
    """How one model trains over the ranks. Methods marked collective are called by all ranks."""

    name: ClassVar[str]
    owns_precision: ClassVar[bool] = False
    """Whether the strategy itself computes in bf16 or fp16, so that the loop does not use autocast."""
    owns_scaling: ClassVar[bool] = False
    """Whether the strategy itself scales the loss in fp16."""

    wrapped: Any = None
    """The module that the loop calls."""
    optimizers: Sequence[Optimizer] = ()
    """The optimizers that the loop steps: the user's, unless the strategy creates its own."""

    def __init__(self, **options: Any) -> None:
        known = [entry.name for entry in dataclasses.fields(StrategyOptions)]
        known.remove("accumulate")  # the loop needs it, too
        for name in options:
            if name == "accumulate":
                raise UsageError("accumulate belongs to the training: TrainConfig(accumulate=…).")
            if name not in known:
                hint = did_you_mean(name, known, f" Its options are {', '.join(known)}.")
                raise UsageError(f"{type(self).__name__} has no option '{name}'.{hint}")
        self._own = options

    def setup(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        *,
        world: World,
        device: torch.device,
        options: StrategyOptions,
        objective: nn.Module | None = None,
    ) -> nn.Module:
        """Put the model on the device, equal on all ranks, and return the module to call. Collective.

        ``objective`` is a module that holds ``model`` and whose forward returns the loss. The optimizers
        stay usable: their parameters, options and state follow the model.
        """
        check_initialized(model)
        self.model, self.objective, self.world, self.device = model, objective, world, device
        self.optimizers = list(optimizers)
        self.options = self.resolve_options(options, optimizers, world)
        if self.options.sync_batchnorm:
            synchronize_batchnorm(model, device, world.size)
        checkpoint_activations(model, self.options.activation_checkpointing)
        self.wrapped = self.wrap_model(optimizers)
        move_state(self.optimizers)
        return self.wrapped

    def resolve_options(
        self,
        options: StrategyOptions,
        optimizers: Sequence[Optimizer],
        world: World,
    ) -> StrategyOptions:
        """Return the options in effect: the strategy's own before the training's. No side effects."""
        return dataclasses.replace(options, **self._own)

    def unsupported_reason(self, feature: str) -> str:
        """Return why this strategy does not support a feature; "" if it does.

        Features: ``several optimizers``, ``closure`` (LBFGS), ``own step``, ``ema``, ``compile``,
        ``clip_value``, ``fused``, ``before_step`` (callbacks that read gradients), ``scheduler``,
        ``lr_scaling``.
        """
        return ""

    def begin_fit(
        self, *, batch_size: int | None, global_batch: int | None, total_steps: int | None
    ) -> None:
        """Prepare for the first step of a fit; the loader's batch sizes are None if unknown."""

    @abstractmethod
    def wrap_model(self, optimizers: Sequence[Optimizer]) -> nn.Module:
        """Move ``self.model`` to the device, make it equal on all ranks, wrap it; return what to call."""

    @property
    def target(self) -> nn.Module:
        """The objective, or the model without one."""
        return self.model if self.objective is None else self.objective

    # The step

    def begin_micro_batch(self, last: bool) -> None:
        """Prepare a forward pass; only the last one of a step averages gradients over the ranks."""

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients of ``loss``."""
        loss.backward()

    def step(self, optimizer: Optimizer) -> None:
        """Make one optimizer step."""
        optimizer.step()

    def reduce_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Average the gradients of a backward pass that did not average them. Collective.

        For custom loops. The same parameters must have a gradient on all ranks.
        """

    def scale_gradients(self, parameters: Iterable[nn.Parameter], factor: float) -> None:
        """Multiply the gradients before a step."""
        torch._foreach_mul_([p.grad for p in parameters if p.grad is not None], factor)

    def clip_norm(self, parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
        """Clip gradients to a total norm of ``max_norm``; return the previous norm, on the device."""
        return clip_gradients(parameters, max_norm, self.device)

    # Between steps

    def sync_buffers(self) -> None:
        """Copy rank 0's buffers, such as the statistics of batch norms, to all ranks. Collective."""

    def end_forward(self, *, failed: bool = False) -> None:
        """Release gathered parameters after forward passes without a backward pass.

        ``failed``: an error ended them, perhaps on this rank alone, so nothing may be collective.
        """

    def full_parameters(self) -> AbstractContextManager[None]:
        """Gather the model's parameters for reading; changes inside are lost. Collective."""
        return nullcontext()

    def settings(self) -> dict[str, Any]:
        """Return the effective configuration, which the run folder keeps as ``<name>.json``."""
        return {}

    def describe(self) -> str:
        """Return one line for the banner."""
        size = self.world.size
        return f"{self.name} over {size} rank{'s' if size > 1 else ''}"

    def close(self) -> None:
        """Release the wrapped modules, whose threads must end before the process group does."""
        self.model = self.wrapped = self.objective = None
        self.optimizers = ()


class MultiRankStrategy(Strategy):
    """A strategy whose ranks communicate through torch.distributed's default group."""

    def sync_buffers(self) -> None:
        """Copy rank 0's buffers to all ranks. Collective."""
        broadcast_tensors(self.target.buffers())

    def rank_0_value(self, value: Any) -> Any:
        """Return a buffer as a shard that rank 0 holds alone, also inside the extra state of modules."""
        if isinstance(value, Mapping):
            return {key: self.rank_0_value(each) for key, each in value.items()}
        if isinstance(value, (list, tuple)):
            kind = tuple if isinstance(value, tuple) else list
            return kind(self.rank_0_value(each) for each in value)
        if not isinstance(value, Tensor) or isinstance(value, nn.Parameter) or is_shard(value):
            return value
        if not value.numel():
            return value
        row = value.detach().reshape(-1)
        return FlatShard(row if self.world.is_main else row[:0], tuple(value.shape), 0)

    def _require_group(self) -> None:
        if not dist.is_initialized():
            raise WorldError(
                f"The {self.name} strategy needs a process group. Call allranks.init() first."
            )

    def _assign(self, pairs: Sequence[tuple[Tensor, str]], source: TensorSource) -> None:
        """Read on rank 0 and broadcast, so that each file is read once."""
        if self.world.is_main:
            super()._assign(pairs, source)
        broadcast_tensors(target for target, _ in pairs)
