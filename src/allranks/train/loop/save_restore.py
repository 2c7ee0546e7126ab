"""What a checkpoint holds of a training: taken as a snapshot, and restored.

Tensors are saved as they are distributed over the ranks; the rest is one tree of plain values, with
references to the tensors, and the random generators of each rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from allranks.errors import UsageError
from allranks.train.checkpoint.checkpoint_reader import CheckpointReader
from allranks.train.checkpoint.write_plan import CheckpointState
from allranks.train.context import TrainContext
from allranks.train.data.sample_hash import mix_seed
from allranks.train.distributed_setup import random_state, seed_rank, set_random_state
from allranks.train.plain_values import plain
from allranks.train.step.metric_accumulator import MetricSums
from allranks.train.step.optimizer_settings import lr_factor, rescale_rates, scheduler_list
from allranks.train.strategies.named_state_dicts import model_mismatch, split_tensors, tensor_keys


def take_snapshot(context: TrainContext) -> CheckpointState:
    """Return the whole training as this rank holds it; nothing is gathered or copied yet."""
    engine, steps = context.engine, context.step_context
    strategy, scaler = engine.strategy, engine.precision.scaler
    tensors: dict[str, Any] = {}
    optimizers = {
        str(number): strategy.optimizer_tensors(each)
        for number, each in enumerate(steps.optimizers)
    }
    average = None if steps.average is None else steps.average.tensors(strategy.like_parameter)
    criterion = _criterion_entries(context)
    if criterion is not None:
        criterion = {name: strategy.rank_0_value(value) for name, value in criterion.items()}
    state = {
        "model": split_tensors(strategy.model_tensors(), "model", tensors),
        "optimizer": split_tensors(optimizers, "optimizer", tensors, counters=True),
        "average": split_tensors(average, "average", tensors),
        "criterion": split_tensors(criterion, "criterion", tensors),
        "schedulers": [
            _without_code(each.state_dict()) for each in scheduler_list(steps.scheduler)
        ],
        "scaler": None if scaler is None else scaler.state_dict(),
        "strategy": {strategy.name: strategy.extra_state()},
        "callbacks": context.callbacks.state_dict(),
        "progress": _progress(context),
        "metrics": dict(context.metrics),
        "seconds": context.state.seconds,
        "search": None if context.search is None else context.search.state(),
        "extras": {name: float(value) for name, value in context.pending_values.items()},
    }
    own = {"random": random_state(), "window": context.accumulator.state()}
    if not context.world.is_main:
        return CheckpointState(tensors, own=own)
    kept = {name: plain(value, f"The state of the {name}") for name, value in state.items()}
    return CheckpointState(tensors, state=kept, own=own)


def _progress(context: TrainContext) -> dict[str, Any]:
    state, config, session = context.state, context.config, context.engine.session
    return {
        "epoch": state.epoch,
        "step": state.step,
        "epoch_end": state.epoch_end,
        "position": context.loader.position(state.epoch, state.batch),
        "samples": samples_seen(context),
        "global_batch": context.loader.global_batch,
        "lr_factor": lr_factor(context.step_context.optimizers),
        "seed": session.seed,
        "world_size": session.world.size,
        "limits": [config.last_epoch, config.max_steps, config.max_seconds],
        "epoch_sums": dict(context.epoch_sums.totals),
        "logged": context.loggers.positions(),
    }


def samples_seen(context: TrainContext) -> int:
    """Return the samples seen over all ranks and epochs, as far as the data knows."""
    state, loader = context.state, context.loader
    inside = loader.position(state.epoch, state.batch)
    if loader.samples is None or inside["unit"] != "samples":
        return state.samples
    return max(0, state.epoch - 1) * loader.samples + min(int(inside["done"]), loader.samples)


def check_fits(context: TrainContext, reader: CheckpointReader, state: Mapping[str, Any]) -> None:
    """Raise, on all ranks alike, when the checkpoint is of another training; nothing is changed."""
    strategy, steps = context.engine.strategy, context.step_context
    for what, saved, here in (
        ("optimizers", len(state["optimizer"]), len(steps.optimizers)),
        ("schedulers", len(state["schedulers"]), len(scheduler_list(steps.scheduler))),
    ):
        if saved != here:
            raise UsageError(f"{reader.path} holds {saved} {what}, this training has {here}.")
    problem = strategy.model_mismatch(state["model"], reader)
    for optimizer, saved in zip(steps.optimizers, state["optimizer"].values(), strict=True):
        problem = problem or strategy.optimizer_mismatch(optimizer, saved)
    entries = _criterion_entries(context)
    if entries is not None and state["criterion"] is not None and not problem:
        problem = model_mismatch(entries, tensor_keys(state["criterion"]), reader)
        problem = problem.replace("model", "criterion")
    if problem:
        raise UsageError(f"{problem}\nThe checkpoint is {reader.path}.")


def restore(context: TrainContext, reader: CheckpointReader, state: Mapping[str, Any]) -> None:
    """Restore the training to the state of the checkpoint; collective."""
    progress = state["progress"]
    if progress["epoch_end"] != "done":
        context.loader.resume(progress["epoch"], progress["position"])
    _restore_tensors(context, reader, state)
    _restore_values(context, state)
    rescale_rates(
        context.step_context.optimizers, context.step_context.scheduler, progress["lr_factor"]
    )
    _restore_rank(context, reader, progress)
    context.metrics.update(state["metrics"])
    context.pending_values = dict(state["extras"])  # logged, and not written yet
    _restore_position(context, progress)


def _restore_tensors(
    context: TrainContext, reader: CheckpointReader, state: Mapping[str, Any]
) -> None:
    strategy, steps = context.engine.strategy, context.step_context
    strategy.load_model(state["model"], reader)
    for optimizer, saved in zip(steps.optimizers, state["optimizer"].values(), strict=True):
        strategy.load_optimizer(optimizer, saved, reader)
    if steps.average is not None:
        steps.average.restart()  # for weights that the checkpoint has no average of
        kept = steps.average.tensors(strategy.like_parameter)
        keys = tensor_keys(state["average"] or {})
        strategy.load_tensors({keys[name]: kept[name] for name in kept if name in keys}, reader)
    entries = _criterion_entries(context)
    if entries is not None and state["criterion"] is not None:
        keys = tensor_keys(state["criterion"])
        strategy.load_tensors({key: entries[name] for name, key in keys.items()}, reader)


def _restore_values(context: TrainContext, state: Mapping[str, Any]) -> None:
    strategy, scaler = context.engine.strategy, context.engine.precision.scaler
    schedulers = scheduler_list(context.step_context.scheduler)
    for scheduler, saved in zip(schedulers, state["schedulers"], strict=True):
        scheduler.load_state_dict(saved)
    if scaler is not None and state["scaler"] is not None:
        scaler.load_state_dict(state["scaler"])
    if own := state["strategy"].get(strategy.name):
        strategy.load_extra_state(own)
    context.callbacks.load_state_dict(state["callbacks"])
    context.state.seconds_before = state["seconds"]
    if context.search is not None and state["search"] is not None:
        context.search.load_state(state["search"], state["progress"]["step"])
    for optimizer in context.step_context.optimizers:
        optimizer._opt_called = (
            True  # it did step: torch must not warn of a scheduler that steps first
        )


def _restore_rank(
    context: TrainContext, reader: CheckpointReader, progress: Mapping[str, Any]
) -> None:
    """Restore random generators and unlogged metrics; another number of ranks shares out the metrics."""
    session, before = context.engine.session, progress["world_size"]
    here = session.world
    blobs = [reader.blob(f"rank.{rank}") for rank in range(here.rank, before, here.size)]
    for blob in blobs:
        context.accumulator.load_state(blob["window"])
    if here.size == before:
        set_random_state(blobs[0]["random"])
    else:
        seed_rank(mix_seed(session.seed, progress["step"]), here.rank)


def _restore_position(context: TrainContext, progress: Mapping[str, Any]) -> None:
    """Restore the position in samples, so that another number of ranks resumes at the same one."""
    state, between = context.state, progress["epoch_end"] == "done"
    state.epoch, state.step, state.epoch_end = (
        progress["epoch"], progress["step"], progress["epoch_end"],
    )  # fmt: skip
    state.first_step = context.step_context.steps_done = state.step
    state.samples_before = progress["samples"]
    state.batch = progress["position"]["batches"]
    context.start_batch = 0 if between else state.batch
    context.epoch_sums = MetricSums({} if between else progress["epoch_sums"])
    state.total_steps = context.total_steps()


def _criterion_entries(context: TrainContext) -> dict[str, Any] | None:
    """Return the parameters and buffers of the criterion, not copied."""
    criterion = context.engine.objective.criterion
    return None if criterion is None else dict(criterion.state_dict(keep_vars=True))


def _without_code(value: Any) -> Any:
    """Return a scheduler's state without functions, which are code and not state."""
    if isinstance(value, dict):
        return {key: _without_code(each) for key, each in value.items() if not callable(each)}
    if isinstance(value, (list, tuple)):
        return [_without_code(each) for each in value]
    return value
