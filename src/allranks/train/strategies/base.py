"""`Strategy`: what a training loop asks of the way a model is spread over the ranks.

The loop knows these methods and nothing of DDP or FSDP. A strategy that steps the optimizer itself
overrides `backward` and `step`; everything else has a default for one process.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from allranks.errors import UsageError, WorldError, did_you_mean
from allranks.runtime.world import World
from allranks.train.checkpoint.write_plan import FlatShard, is_shard
from allranks.train.strategies.modules import (
    checkpoint_activations,
    move_state,
    refuse_unmade,
    synchronise_batchnorm,
)
from allranks.train.strategies.named_states import TensorSource
from allranks.train.strategies.state_access import StateAccess
from allranks.train.strategies.tensor_collectives import broadcast_tensors, clip_gradients


@dataclass(frozen=True)
class StrategyOptions:
    """What the training as a whole asks of its strategy; a strategy's own options win over these."""

    precision: str = "fp32"
    """"fp32", "tf32", "bf16" or "fp16"."""
    sync_batchnorm: bool = False
    """Batch normalisation over the batches of all ranks."""
    activation_checkpointing: bool | Sequence[str] = False
    """Recompute activations in the backward pass: True for the repeated blocks, or class names."""
    wrap: Sequence[str | type] | None = None
    """fsdp: classes whose instances are sharded one by one; None: the repeated blocks."""
    cpu_offload: bool = False
    """fsdp: shards, gradients and optimizer state live in the CPU's memory."""
    find_unused_parameters: bool = False
    """ddp: for models that do not use every parameter in every step."""
    accumulate: int = 1
    """Forward and backward passes that make one step."""
    clip_norm: float | None = None
    """The total norm that gradients are scaled down to."""
    warmup_steps: int = 0
    """Steps over which the learning rate rises."""


class Strategy(StateAccess, ABC):
    """One way to train one model over the ranks. Methods marked collective are called by all ranks."""

    name: ClassVar[str]
    owns_precision: ClassVar[bool] = False
    """True when the strategy itself computes in bf16 or fp16, so that autocast is left away."""
    owns_scaling: ClassVar[bool] = False
    """True when the strategy itself scales fp16's losses."""

    wrapped: Any = None
    """What the loop calls."""
    optimizers: Sequence[Optimizer] = ()
    """What the loop steps: the given ones, unless the strategy brings its own."""

    def __init__(self, **options: Any) -> None:
        known = [entry.name for entry in dataclasses.fields(StrategyOptions)]
        known.remove("accumulate")  # the loop must know it, too
        for name in options:
            if name == "accumulate":
                raise UsageError("accumulate belongs to the training: TrainConfig(accumulate=…).")
            if name not in known:
                hint = did_you_mean(name, known, f" It takes {', '.join(known)}.")
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
        """Put the model on the device, equal on all ranks, and return what to call. Collective.

        ``objective`` is a module that holds ``model`` and whose forward gives the loss. The
        optimizers go on working: their parameters, options and state follow the model.
        """
        refuse_unmade(model)
        self.model, self.objective, self.world, self.device = model, objective, world, device
        self.optimizers = list(optimizers)
        self.options = self.resolve_options(options, optimizers, world)
        if self.options.sync_batchnorm:
            synchronise_batchnorm(model, device, world.size)
        checkpoint_activations(model, self.options.activation_checkpointing)
        self.wrapped = self._place(optimizers)
        move_state(self.optimizers)
        return self.wrapped

    def resolve_options(
        self,
        options: StrategyOptions,
        optimizers: Sequence[Optimizer],
        world: World,
    ) -> StrategyOptions:
        """What counts in the end: the strategy's own options before the training's. No side effects."""
        return dataclasses.replace(options, **self._own)

    def unsupported_reason(self, wish: str) -> str:
        """Why this strategy cannot do something; "" when it can.

        Wishes: ``several optimizers``, ``closure`` (LBFGS), ``own step``, ``ema``, ``compile``,
        ``clip_value``, ``fused``, ``before_step`` (callbacks that look at gradients), ``scheduler``,
        ``lr_scaling``.
        """
        return ""

    def begin_fit(
        self, *, batch_size: int | None, global_batch: int | None, total_steps: int | None
    ) -> None:
        """Before the first step of a fit: what is known of its data, per rank and over all ranks."""

    @abstractmethod
    def _place(self, optimizers: Sequence[Optimizer]) -> nn.Module:
        """Move, make equal and wrap ``self.model``; returns the module to call."""

    @property
    def target(self) -> nn.Module:
        """The objective, or the model when there is none."""
        return self.model if self.objective is None else self.objective

    # The step

    def begin_micro_batch(self, last: bool) -> None:
        """Before each forward pass: whether the gradients of its backward pass are to be shared."""

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Forward and backward passes in here keep their gradients to themselves."""
        self.begin_micro_batch(last=False)
        try:
            yield
        finally:
            self.begin_micro_batch(last=True)

    def backward(self, loss: Tensor) -> None:
        """Gradients of ``loss``."""
        loss.backward()

    def step(self, optimizer: Optimizer) -> None:
        """One optimizer step."""
        optimizer.step()

    def reduce_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Average gradients that a backward pass without sharing left. Collective.

        For loops that step by hand. The same parameters must have a gradient on all ranks.
        """

    def scale_gradients(self, parameters: Iterable[nn.Parameter], factor: float) -> None:
        """Multiply the gradients that a step is about to use."""
        torch._foreach_mul_([p.grad for p in parameters if p.grad is not None], factor)

    def clip_norm(self, parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
        """Scale gradients to a total norm of at most ``max_norm``; returns the norm before, unread."""
        return clip_gradients(parameters, max_norm, self.device)

    # Between steps

    def sync_buffers(self) -> None:
        """Give all ranks rank 0's buffers, such as the statistics of batch norms. Collective."""

    def end_forward(self, *, failed: bool = False) -> None:
        """After forward passes without a backward one: nothing gathered may outlive them.

        ``failed``: an error ended them, perhaps on this rank alone, so nothing may be collective.
        """

    def full_parameters(self) -> AbstractContextManager[None]:
        """Inside, the model's parameters are whole, to be read: changes are lost. Collective."""
        return nullcontext()

    def settings(self) -> dict[str, Any]:
        """What the run folder keeps as ``<name>.json``: a configuration as it was really used."""
        return {}

    def describe(self) -> str:
        """One line for people."""
        size = self.world.size
        return f"{self.name} over {size} rank{'s' if size > 1 else ''}"

    def close(self) -> None:
        """Let go of the wrapped modules, whose threads must end before the process group does."""
        self.model = self.wrapped = self.objective = None
        self.optimizers = ()


class MultiRankStrategy(Strategy):
    """A strategy whose ranks talk through torch.distributed's default group."""

    def sync_buffers(self) -> None:
        """Give all ranks rank 0's buffers. Collective."""
        broadcast_tensors(self.target.buffers())

    def rank_0_value(self, value: Any) -> Any:
        """A buffer as rank 0 holds all of it and the others nothing, also inside of what modules make."""
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
                f"The {self.name} strategy needs a process group: call allranks.init() first."
            )

    def _assign(self, pairs: Sequence[tuple[Tensor, str]], source: TensorSource) -> None:
        """Rank 0 reads and hands out, so that a file is read once."""
        if self.world.is_main:
            super()._assign(pairs, source)
        broadcast_tensors(target for target, _ in pairs)
