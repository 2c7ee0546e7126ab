"""The model on its ranks, set up once per Trainer: session, strategy, objective, optimizers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from allranks.errors import UsageError
from allranks.train.argument_checks import check_optimizers, check_options
from allranks.train.config import TrainConfig
from allranks.train.data import DistributedLoader, LoaderOptions, distribute_loader
from allranks.train.distributed_setup import Session, close_at_exit, start_session
from allranks.train.step.loss_module import Compute, Objective
from allranks.train.step.optimizer_settings import Precision, make_precision, use_fused_kernel
from allranks.train.strategies import Strategy, StrategyOptions, choose_strategy


@dataclass
class TrainEngine:
    """What fit, validate, test and predict have in common."""

    config: TrainConfig
    session: Session
    strategy: Strategy
    reason: str
    """Why this strategy was chosen."""
    precision: Precision
    model: nn.Module
    objective: Objective
    """Not wrapped: for evaluation and compilation."""
    wrapped: nn.Module
    """What is called in training: the wrapped objective, or the wrapped model if the user's step calls it."""
    optimizers: Sequence[Any]
    fused: list[str]
    """The names of optimizers that were switched to fused kernels."""

    def loader(self, data: Any, *, training: bool) -> DistributedLoader:
        """Return a loader that gives this rank its part of the data."""
        if data is None or not hasattr(data, "__iter__"):
            raise UsageError(
                f"The data is of type {type(data).__name__}: give a DataLoader or an iterable of batches."
            )
        world, config = self.session.world, self.config
        options = LoaderOptions(
            seed=self.session.seed,
            batch_size_is=config.batch_size_is,
            shard_iterable=config.shard_iterable,
            audit=config.audit and training,
            prefetch=config.prefetch,
            dtype=config.dtype,
            training=training,
        )
        device = self.session.device
        return distribute_loader(
            data, rank=world.rank, size=world.size, device=device, options=options
        )


def make_engine(
    config: TrainConfig,
    model: nn.Module,
    optimizers: Sequence[Any],
    compute: Compute,
    *,
    calls_model: bool = False,
    extra: nn.Module | None = None,
    log_folder: Callable[[], Path] | None = None,
) -> TrainEngine:
    """Start the ranks, choose the strategy, and let it set up the model.

    ``calls_model``: the user's own step calls the model, so the strategy wraps it and not the
    objective. ``extra``: a criterion, whose weights and buffers move with the model.
    """
    session = start_session(config, log_folder)
    if config.dtype is not None:
        model.to(config.dtype)
    options = StrategyOptions(
        precision=config.precision,
        sync_batchnorm=config.sync_batchnorm,
        activation_checkpointing=config.activation_checkpointing,
        accumulate=config.accumulate,
        clip_norm=config.clip_norm,
        warmup_steps=config.warmup_steps,
    )
    world, device = session.world, session.device
    if extra is not None:
        extra.to(device, config.dtype)
    strategy, reason = choose_strategy(config.strategy, model, optimizers, world, device, options)
    precision = make_precision(
        strategy.resolve_options(options, optimizers, world).precision,
        device,
        owned=strategy.owns_precision,
        scales=not strategy.owns_scaling,
    )
    objective = Objective(model, compute, precision.autocast, extra)
    check_optimizers(optimizers, objective)
    check_options(strategy, config, optimizers)
    wrapped = strategy.setup(
        model,
        optimizers,
        world=world,
        device=device,
        options=options,
        objective=None if calls_model else objective,
    )
    objective.train(model.training)
    close_at_exit(strategy)
    optimizers = strategy.optimizers
    # No fused kernel takes sparse gradients; only the layer that makes them knows of them.
    sparse = any(getattr(part, "sparse", False) for part in model.modules())
    may_fuse = config.fused and not sparse and not strategy.unsupported_reason("fused")
    fused = [type(o).__name__ for o in optimizers if may_fuse and use_fused_kernel(o, device)]
    return TrainEngine(
        config, session, strategy, reason, precision, model, objective, wrapped, optimizers, fused
    )


def named_optimizers(optimizer: Any) -> dict[str, Any]:
    """Return one optimizer, or a list or dict of them, by name."""
    if isinstance(optimizer, Mapping):
        named = {str(name): each for name, each in optimizer.items()}
    elif isinstance(optimizer, (list, tuple)):
        named = {str(position): each for position, each in enumerate(optimizer)}
    else:
        named = {"0": optimizer}
    for name, each in named.items():
        if not isinstance(each, torch.optim.Optimizer):
            raise UsageError(
                f"Optimizer {name} is a {type(each).__name__}: give a torch.optim.Optimizer, "
                "several of them, or one with ask() and tell() (nevergrad)."
            )
    return named
