"""Build what a ``fit`` works with: engine, step function, callbacks, compiler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from allranks.errors import UsageError
from allranks.train import callbacks as kit
from allranks.train.argument_checks import check_fit, refuse_option, refuse_step_options
from allranks.train.callbacks.base import Callbacks
from allranks.train.context import TrainContext, TrainingState
from allranks.train.model_setup import make_engine
from allranks.train.step.compilation import Compiler
from allranks.train.step.custom_steps import (
    GradientFreeSearch,
    closure_step,
    custom_step,
    manual_step,
    needs_closure,
)
from allranks.train.step.metric_accumulator import MetricAccumulator, MetricSums
from allranks.train.step.optimizer_settings import Warmup, WeightAverage, scale_factor, scale_rates
from allranks.train.step.step_functions import Step, StepContext, full_step, plain_step
from allranks.train.trainer_run import attempt_folder, make_folder


def build_engine(context: TrainContext) -> None:
    """Start the ranks and set the model up; then agree on the run folder."""
    config, task = context.config, context.task

    def folder() -> Path:
        return make_folder(config.root_folder, config.name)

    context.engine = make_engine(
        config,
        task.model,
        list(task.optimizers.values()),
        task.compute,
        calls_model=task.calls_model,
        extra=task.loss_fn if isinstance(task.loss_fn, nn.Module) else None,
        log_folder=lambda: attempt_folder(folder()),
    )
    context.folder = context.communicator.call_on_rank_zero(folder)


def build_fit(context: TrainContext, train: Any, val: Any) -> None:
    """Set up everything that the loop needs, with the step and epoch at 0."""
    config, engine, task = context.config, context.engine, context.task
    context.loader = loader = engine.loader(train, training=True)
    context.val_loader = None if val is None else engine.loader(val, training=False)
    check_fit(config, task.scheduler, loader, context.val_loader)
    context.state = TrainingState(epochs=config.last_epoch, device=context.device)
    context.state.samples_per_step = (loader.global_batch or 0) * config.accumulate
    context.state.total_steps = context.total_steps()
    context.metrics, context.epoch_sums = {}, MetricSums()
    context.start_batch, context.search = 0, None
    context.callbacks = Callbacks(_all_callbacks(context))
    context.accumulator = MetricAccumulator(context.device, context.world.size, context.world.rank)
    context.step_context = _step_context(context)
    _check_strategy(context)
    engine.strategy.begin_fit(
        batch_size=loader.batch_size,
        global_batch=loader.global_batch,
        total_steps=context.state.total_steps,
    )
    scale_rates(context.step_context.optimizers, task.scheduler, _lr_factor(context))
    context.compiler = _compiler(context)
    context.step = make_step(context)


def _step_context(context: TrainContext) -> StepContext:
    config, engine, task, loader = context.config, context.engine, context.task, context.loader
    options, on_cpu = engine.strategy.options, context.device.type == "cpu"
    optimizers, average = [*task.optimizers.values()], None
    if config.ema is not None:
        average = WeightAverage(engine.model, config.ema, engine.strategy.end_forward)
    listens = context.callbacks.has("before_step")
    return StepContext(
        objective=engine.objective if task.calls_model else engine.wrapped,
        model=engine.wrapped if task.optimize_step else engine.model,
        strategy=engine.strategy,
        optimizers=optimizers,
        names=list(task.optimizers),
        accumulator=context.accumulator,
        precision=engine.precision,
        detach_loss=torch.Tensor.item if on_cpu else torch.Tensor.detach,
        batch_size=loader.batch_size,
        total_of=loader.total_of,
        rank=context.world.rank,
        size=context.world.size,
        accumulate=config.accumulate,
        clip_norm=options.clip_norm,
        clip_value=config.clip_value,
        scheduler=task.scheduler,
        scheduler_per_step=config.scheduler_every == "step",
        warmup=Warmup(optimizers, options.warmup_steps) if options.warmup_steps else None,
        average=average,
        before_step=(lambda: context.fire("before_step")) if listens else None,
    )


def _check_strategy(context: TrainContext) -> None:
    """Raise for what the strategy cannot do in this fit."""
    strategy, config = context.engine.strategy, context.config
    refuse_option(strategy, "before_step", context.callbacks.has("before_step"))
    refuse_option(strategy, "scheduler", context.task.scheduler is not None)
    refuse_option(strategy, "lr_scaling", config.lr_scaling != "none")


def make_step(context: TrainContext) -> Step:
    """Return the step function for the user's choices."""
    task, steps, config = context.task, context.step_context, context.config
    if task.gradient_free:
        context.search = GradientFreeSearch(steps, task.optimizer)
        return context.search.step
    if not steps.optimizers:
        raise UsageError("There is no optimizer: Trainer(model, optimizer, config).")
    if task.manual_step is not None:
        refuse_option(steps.strategy, "own step")
        if steps.accumulate > 1:
            raise UsageError(
                "accumulate works with one loss; a training_step with `step` decides itself."
            )
        return manual_step(steps, task.manual_step)
    if task.optimize_step is not None:
        refuse_option(steps.strategy, "own step")
        refuse_step_options(config, "Your optimize_step makes the whole step")
        return custom_step(steps, task.optimize_step, task.loss_fn)
    if any(map(needs_closure, steps.optimizers)):
        refuse_option(steps.strategy, "closure")
        name = type(steps.optimizers[0]).__name__
        if len(steps.optimizers) > 1:
            raise UsageError(f"{name} evaluates the loss itself and must be the only optimizer.")
        refuse_step_options(config, f"{name} evaluates the loss itself", but=["clip_norm"])
        return closure_step(steps)
    return plain_step(steps) if steps.is_plain else full_step(steps)


def has_standard_step(context: TrainContext) -> bool:
    """Whether the step is forward, backward and step, and not driven by the user or the optimizer."""
    return not context.task.calls_model and not any(
        map(needs_closure, context.step_context.optimizers)
    )


def _compiler(context: TrainContext) -> Compiler:
    """Only the objective is compiled: not a model that the user's own step calls."""
    config, engine = context.config, context.engine
    may = not engine.strategy.unsupported_reason("compile") and not config.deterministic
    return Compiler(
        engine.objective,
        config.compile if may and not context.task.calls_model else False,
        context.device,
        say=context.say,
        mean_over_ranks=context.mean_over_ranks,
        may_graph=engine.strategy.name == "single" and config.accumulate == 1,
    )


def _all_callbacks(context: TrainContext) -> list[Any]:
    """The Trainer's own methods first, then the user's, then what the configuration asks for."""
    config, monitor = context.config, context.monitor
    made: list[Any] = list(context.task.callbacks)
    rule: dict[str, Any] = {"mode": config.mode, "criterion": config.validation_criterion}
    if config.plot_every and config.plotting_functions:
        made.append(kit.WritePlots(config.plotting_functions, config.plot_every))
    if config.patience is not None:
        made.append(
            kit.EarlyStopping(monitor, config.patience, min_delta=config.val_epsilon, **rule)
        )
    if config.checkpoint and (config.checkpoint_best_only or context.val_loader is not None):
        made.append(kit.SaveBest(monitor, epsilon=config.val_epsilon, **rule))
    if config.checkpoint and config.checkpoint_every and not config.checkpoint_best_only:
        made.append(kit.SaveEvery(epochs=config.checkpoint_every))
    if config.log_model:
        made.append(kit.LogModel())
    return made


def _lr_factor(context: TrainContext) -> float:
    config, loader = context.config, context.loader
    if config.lr_scaling == "none" or context.task.gradient_free:
        return 1.0
    own = loader.batch_size if config.batch_size_is == "per_rank" else loader.global_batch
    base = config.lr_base_batch or own
    if loader.global_batch is None or base is None:
        raise UsageError(
            f"lr_scaling='{config.lr_scaling}' needs the batch size, which this data does not have.\n"
            "Scale the learning rate yourself, or use a DataLoader with a batch_size."
        )
    return scale_factor(config.lr_scaling, loader.global_batch * config.accumulate, base)


def close_loaders(context: TrainContext) -> None:
    """Stop the worker processes of the data loaders."""
    for loader in (context.loader, context.val_loader):
        if loader is not None:
            loader.close()


def rebuild_loaders(context: TrainContext, train: Any, val: Any) -> None:
    """Make the loaders again, as with another seed; the step follows."""
    close_loaders(context)
    context.loader = context.engine.loader(train, training=True)
    context.val_loader = None if val is None else context.engine.loader(val, training=False)
    context.step_context.total_of = context.loader.total_of
    context.step = make_step(context)
