"""Puts the parts of a training together and takes them apart again, whatever happens in between."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from allranks.errors import UsageError
from allranks.train import callbacks as kit
from allranks.train.callbacks.base import Callbacks
from allranks.train.compilation import Compiler
from allranks.train.data import DistributedLoader
from allranks.train.ema import Average
from allranks.train.engine import Engine, make_engine
from allranks.train.folder import attempt_folder, make_folder
from allranks.train.gradient_step import optimize_step as default_optimize_step
from allranks.train.loop import Fit
from allranks.train.meter import Meter
from allranks.train.objective import Compute, takes_step
from allranks.train.refusals import refuse_stepping, refuse_wish
from allranks.train.schedule import Warmup, scale_factor, scale_rates
from allranks.train.session import share_result, total_over_ranks
from allranks.train.special_steps import (
    closure_step,
    custom_step,
    gradient_free_step,
    manual_step,
    needs_closure,
)
from allranks.train.state import State
from allranks.train.stepping import Parts, Step, full_step, plain_step

if TYPE_CHECKING:
    from allranks.train.trainer import Trainer


def engine_for(trainer: Trainer, compute: Compute) -> Engine:
    """Start the ranks and put the model in place; then agree on the run folder."""
    config = trainer.config

    def folder() -> Any:
        return make_folder(config.root_folder, config.name)

    engine = make_engine(
        config,
        trainer.model,
        trainer.optimizers,
        compute,
        calls_model=_calls_model(trainer),
        extra=trainer.loss_fn if isinstance(trainer.loss_fn, nn.Module) else None,
        log_folder=lambda: attempt_folder(folder()),
    )
    if trainer.optimizer is None and engine.optimizers:
        trainer.optimizer = engine.optimizers[0]  # the strategy made it
    here, device = engine.session.world, engine.session.device
    trainer.folder = share_result(folder, here, device)
    return engine


def _calls_model(trainer: Trainer) -> bool:
    own = trainer.optimize_step is not default_optimize_step
    return own or takes_step(trainer.own_step) or trainer.is_gradient_free


def make_fit(
    trainer: Trainer,
    engine: Engine,
    loader: DistributedLoader,
    val_loader: DistributedLoader | None,
) -> Fit:
    config, session = trainer.config, engine.session
    state = State(epochs=config.last_epoch, device=session.device)
    state.samples_per_step = (loader.global_batch or 0) * config.accumulate
    state.total_steps = _total_steps(trainer, loader)
    trainer.state = state
    trainer.metrics = {}
    callbacks = Callbacks(_all_callbacks(trainer, val_loader is not None))
    meter = Meter(session.device, session.world.size, session.world.rank)
    parts = _make_parts(trainer, engine, loader, meter)
    if callbacks.has("before_step"):
        refuse_wish(engine.strategy, "before_step")
        parts.before_step = lambda: callbacks.fire("before_step", trainer)
    refuse_wish(engine.strategy, "scheduler", trainer.scheduler is not None)
    refuse_wish(engine.strategy, "lr_scaling", config.lr_scaling != "none")
    engine.strategy.begin_fit(
        batch_size=loader.batch_size,
        global_batch=loader.global_batch,
        total_steps=state.total_steps,
    )
    factor = _lr_factor(trainer, loader)
    scale_rates(parts.optimizers, parts.scheduler, factor)
    compiler = Compiler(
        engine.objective,
        config.compile if _may_compile(trainer, engine) else False,
        session.device,
        say=trainer.say,
        agree=lambda seconds: total_over_ranks(seconds, session) / session.world.size,
        may_graph=engine.strategy.name == "single" and config.accumulate == 1,
    )
    return Fit(
        engine, loader, val_loader, parts, make_step(trainer, parts), meter, state, callbacks, compiler,
        ordinary=not _calls_model(trainer) and not any(map(needs_closure, parts.optimizers)),
    )  # fmt: skip


def _make_parts(trainer: Trainer, engine: Engine, loader: DistributedLoader, meter: Meter) -> Parts:
    config, here = trainer.config, engine.session.world
    decided = engine.strategy.options
    named = trainer._named_optimizers()
    return Parts(
        objective=engine.objective if _calls_model(trainer) else engine.wrapped,
        model=engine.wrapped if _custom(trainer) else engine.model,
        strategy=engine.strategy,
        optimizers=list(named.values()),
        names=list(named),
        meter=meter,
        precision=engine.precision,
        keep_loss=torch.Tensor.item if engine.session.device.type == "cpu" else torch.Tensor.detach,
        batch_size=loader.batch_size,
        total_of=loader.total_of,
        rank=here.rank,
        size=here.size,
        accumulate=config.accumulate,
        clip_norm=decided.clip_norm,
        clip_value=config.clip_value,
        scheduler=trainer.scheduler,
        scheduler_per_step=config.scheduler_every == "step",
        warmup=Warmup([*named.values()], decided.warmup_steps) if decided.warmup_steps else None,
        average=None
        if config.ema is None
        else Average(engine.model, config.ema, engine.strategy.end_forward),
    )


def make_step(trainer: Trainer, parts: Parts) -> Step:
    """The way of stepping that the user's choices ask for."""
    if trainer.is_gradient_free:
        return gradient_free_step(parts, trainer.optimizer)
    if not parts.optimizers:
        raise UsageError("There is no optimizer: Trainer(model, optimizer, config).")
    if takes_step(trainer.own_step):
        refuse_wish(parts.strategy, "own step")
        if parts.accumulate > 1:
            raise UsageError(
                "accumulate works with one loss; a training_step with `step` decides itself."
            )
        return manual_step(parts, trainer.own_step)  # type: ignore[arg-type]
    if _custom(trainer):
        refuse_wish(parts.strategy, "own step")
        refuse_stepping(trainer.config, "Your optimize_step makes the whole step")
        return custom_step(parts, trainer.optimize_step, trainer.loss_fn)
    if any(map(needs_closure, parts.optimizers)):
        refuse_wish(parts.strategy, "closure")
        name = type(parts.optimizers[0]).__name__
        if len(parts.optimizers) > 1:
            raise UsageError(f"{name} evaluates the loss itself and must be the only optimizer.")
        refuse_stepping(trainer.config, f"{name} evaluates the loss itself", but=["clip_norm"])
        return closure_step(parts)
    return plain_step(parts) if parts.is_plain else full_step(parts)


def _custom(trainer: Trainer) -> bool:
    return trainer.optimize_step is not default_optimize_step


def _may_compile(trainer: Trainer, engine: Engine) -> bool:
    """Only the objective is compiled: not a model that the user's own step calls."""
    may = not engine.strategy.unsupported_reason("compile")
    return may and not _calls_model(trainer) and not trainer.config.deterministic


def _all_callbacks(trainer: Trainer, has_val: bool) -> list[Any]:
    """The Trainer's own methods first, then the user's, then what the configuration asks for."""
    config = trainer.config
    monitor = config.monitor or ("val_loss" if has_val else "train_loss")
    made: list[Any] = [trainer, *trainer.callbacks]
    rule: dict[str, Any] = {"mode": config.mode, "criterion": config.validation_criterion}
    if config.plot_every and config.plotting_functions:
        made.append(kit.WritePlots(config.plotting_functions, config.plot_every))
    if config.patience is not None:
        made.append(
            kit.EarlyStopping(monitor, config.patience, min_delta=config.val_epsilon, **rule)
        )
    if config.checkpoint and (config.checkpoint_best_only or has_val):
        made.append(kit.SaveBest(monitor, epsilon=config.val_epsilon, **rule))
    if config.checkpoint and config.checkpoint_every and not config.checkpoint_best_only:
        made.append(kit.SaveEvery(epochs=config.checkpoint_every))
    if config.log_model:
        made.append(kit.LogModel())
    return made


def _total_steps(trainer: Trainer, loader: DistributedLoader) -> int | None:
    """Optimizer steps to come, where that can be known."""
    config = trainer.config
    known = [config.max_steps] if config.max_steps is not None else []
    if loader.batches is not None and config.last_epoch is not None:
        known.append(config.last_epoch * math.ceil(loader.batches / config.accumulate))
    return min(known, default=None)


def _lr_factor(trainer: Trainer, loader: DistributedLoader) -> float:
    config = trainer.config
    if config.lr_scaling == "none" or trainer.is_gradient_free:
        return 1.0
    own = loader.batch_size if config.batch_size_is == "per_rank" else loader.global_batch
    base = config.lr_base_batch or own
    if loader.global_batch is None or base is None:
        raise UsageError(
            f"lr_scaling='{config.lr_scaling}' needs the batch size, which this data does not tell.\n"
            "Scale the learning rate yourself, or use a DataLoader with a batch_size."
        )
    return scale_factor(config.lr_scaling, loader.global_batch * config.accumulate, base)
