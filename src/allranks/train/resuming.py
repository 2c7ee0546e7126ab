"""What a checkpoint holds of a training, and going on from one.

Tensors are saved as they lie on the ranks; the rest is one tree of plain values, in which notes stand for
the tensors, and the generators of each rank.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from allranks.errors import UsageError
from allranks.train.checkpoint.checkpoint_reader import CheckpointReader
from allranks.train.checkpoint.write_plan import CheckpointState
from allranks.train.data.digest import mix_seed
from allranks.train.plain import plain
from allranks.train.schedule import scale_rates, stepping
from allranks.train.seeds import random_state, seed_rank, set_random_state
from allranks.train.strategies.named_states import model_mismatch, split_tensors, tensor_keys

if TYPE_CHECKING:
    from allranks.train.loop import Fit
    from allranks.train.trainer import Trainer


def snapshot(trainer: Trainer, fit: Fit) -> CheckpointState:
    """The whole training as this rank holds it; nothing is gathered and nothing copied yet."""
    engine, parts = fit.engine, fit.parts
    strategy, scaler = engine.strategy, engine.precision.scaler
    tensors: dict[str, Any] = {}
    optimizers = {
        str(number): strategy.optimizer_tensors(each)
        for number, each in enumerate(parts.optimizers)
    }
    average = None if parts.average is None else parts.average.tensors(strategy.like_parameter)
    criterion = _criterion_entries(fit)
    if criterion is not None:
        criterion = {name: strategy.rank_0_value(value) for name, value in criterion.items()}
    state = {
        "model": split_tensors(strategy.model_tensors(), "model", tensors),
        "optimizer": split_tensors(optimizers, "optimizer", tensors, counters=True),
        "average": split_tensors(average, "average", tensors),
        "criterion": split_tensors(criterion, "criterion", tensors),
        "schedulers": [_without_code(each.state_dict()) for each in stepping(parts.scheduler)],
        "scaler": None if scaler is None else scaler.state_dict(),
        "strategy": {strategy.name: strategy.extra_state()},
        "callbacks": fit.callbacks.state_dict(),
        "progress": _progress(trainer, fit),
        "metrics": dict(trainer.metrics),
        "seconds": fit.state.seconds,
        "search": None if parts.search is None else parts.search.state(),
        "extras": {name: float(value) for name, value in trainer._extras.items()},
    }
    own = {"random": random_state(), "window": fit.meter.state()}
    if not trainer.world.is_main:
        return CheckpointState(tensors, own=own)
    kept = {name: plain(value, f"The state of the {name}") for name, value in state.items()}
    return CheckpointState(tensors, state=kept, own=own)


def _progress(trainer: Trainer, fit: Fit) -> dict[str, Any]:
    state, config, session = fit.state, trainer.config, fit.engine.session
    return {
        "epoch": state.epoch,
        "step": state.step,
        "closing": state.closing,
        "position": fit.loader.position(state.epoch, state.batch),
        "samples": samples_seen(fit),
        "global_batch": fit.loader.global_batch,
        "lr_factor": _lr_factor(fit),
        "seed": session.seed,
        "world_size": session.world.size,
        "limits": [config.last_epoch, config.max_steps, config.max_seconds],
        "epoch_sums": trainer._epoch_sums(),
        "logged": trainer._sink.positions(),
    }


def samples_seen(fit: Fit) -> int:
    """Over all ranks and epochs, as far as the data tells."""
    state, loader = fit.state, fit.loader
    inside = loader.position(state.epoch, state.batch)
    if loader.samples is None or inside["unit"] != "samples":
        return state.samples
    return max(0, state.epoch - 1) * loader.samples + min(int(inside["done"]), loader.samples)


def misfits(fit: Fit, reader: CheckpointReader, state: Mapping[str, Any]) -> None:
    """An error, the same on all ranks, when the checkpoint is of another training; nothing is changed."""
    strategy, parts = fit.engine.strategy, fit.parts
    for what, saved, here in (
        ("optimizers", len(state["optimizer"]), len(parts.optimizers)),
        ("schedulers", len(state["schedulers"]), len(stepping(parts.scheduler))),
    ):
        if saved != here:
            raise UsageError(f"{reader.path} holds {saved} {what}, this training has {here}.")
    problem = strategy.model_mismatch(state["model"], reader)
    for optimizer, saved in zip(parts.optimizers, state["optimizer"].values(), strict=True):
        problem = problem or strategy.optimizer_mismatch(optimizer, saved)
    entries = _criterion_entries(fit)
    if entries is not None and state["criterion"] is not None and not problem:
        problem = model_mismatch(entries, tensor_keys(state["criterion"]), reader)
        problem = problem.replace("model", "criterion")
    if problem:
        raise UsageError(f"{problem}\nThe checkpoint is {reader.path}.")


def load(trainer: Trainer, fit: Fit, reader: CheckpointReader, state: Mapping[str, Any]) -> None:
    """Go on where the checkpoint stands. Collective."""
    progress = state["progress"]
    if progress["closing"] != "done":
        fit.loader.resume(progress["epoch"], progress["position"])
    _load_large(fit, reader, state)
    _load_small(fit, state)
    _scale_again(fit, progress["lr_factor"])
    _load_own(fit, reader, progress)
    trainer.metrics.update(state["metrics"])
    trainer._extras = dict(state["extras"])  # logged, and not written yet
    _set_position(trainer, fit, progress)


def _load_large(fit: Fit, reader: CheckpointReader, state: Mapping[str, Any]) -> None:
    strategy, parts = fit.engine.strategy, fit.parts
    strategy.load_model(state["model"], reader)
    for optimizer, saved in zip(parts.optimizers, state["optimizer"].values(), strict=True):
        strategy.load_optimizer(optimizer, saved, reader)
    if parts.average is not None:
        parts.average.restart()  # for what the checkpoint has no average of
        kept = parts.average.tensors(strategy.like_parameter)
        keys = tensor_keys(state["average"] or {})
        strategy.load_tensors({keys[name]: kept[name] for name in kept if name in keys}, reader)
    entries = _criterion_entries(fit)
    if entries is not None and state["criterion"] is not None:
        keys = tensor_keys(state["criterion"])
        strategy.load_tensors({key: entries[name] for name, key in keys.items()}, reader)


def _load_small(fit: Fit, state: Mapping[str, Any]) -> None:
    strategy, scaler = fit.engine.strategy, fit.engine.precision.scaler
    schedulers = stepping(fit.parts.scheduler)
    for scheduler, saved in zip(schedulers, state["schedulers"], strict=True):
        scheduler.load_state_dict(saved)
    if scaler is not None and state["scaler"] is not None:
        scaler.load_state_dict(state["scaler"])
    if own := state["strategy"].get(strategy.name):
        strategy.load_extra_state(own)
    fit.callbacks.load_state_dict(state["callbacks"])
    fit.state.seconds_before = state["seconds"]
    if fit.parts.search is not None and state["search"] is not None:
        fit.parts.search.load_state(state["search"], state["progress"]["step"])
    for optimizer in fit.parts.optimizers:
        optimizer._opt_called = True  # it did step: a schedule that moves first is no mistake


def _load_own(fit: Fit, reader: CheckpointReader, progress: Mapping[str, Any]) -> None:
    """This rank's generators, and what was measured since the last log; other ranks share that out."""
    session, before = fit.engine.session, progress["world_size"]
    here = session.world
    blobs = [reader.blob(f"rank.{rank}") for rank in range(here.rank, before, here.size)]
    for blob in blobs:
        fit.meter.load_state(blob["window"])
    if here.size == before:
        set_random_state(blobs[0]["random"])
    else:
        seed_rank(mix_seed(session.seed, progress["step"]), here.rank)


def _set_position(trainer: Trainer, fit: Fit, progress: Mapping[str, Any]) -> None:
    """Skip what was seen: in samples, so that another number of ranks goes on at the same place."""
    state, between = fit.state, progress["closing"] == "done"
    state.epoch, state.step, state.closing = (
        progress["epoch"], progress["step"], progress["closing"],
    )  # fmt: skip
    state.first_step = fit.parts.steps_done = state.step
    state.seen_before = progress["samples"]
    state.batch = progress["position"]["batches"]
    fit.start_batch = 0 if between else state.batch
    trainer._resumed_sums = {} if between else progress["epoch_sums"]
    state.total_steps = _total_steps(trainer, fit)


def _total_steps(trainer: Trainer, fit: Fit) -> int | None:
    """Steps in all, those before the resumption as they were, the others with the present batch."""
    state, loader, config = fit.state, fit.loader, trainer.config
    known = [config.max_steps] if config.max_steps is not None else []
    if loader.batches is not None and config.last_epoch is not None:
        this = loader.batches_of(state.epoch) or 0
        left = 0 if state.closing == "done" else this - fit.start_batch
        epochs = max(0, config.last_epoch - state.epoch)
        steps = math.ceil(left / config.accumulate) + epochs * math.ceil(
            loader.batches / config.accumulate
        )
        known.append(state.step + steps)
    return min(known, default=None)


def _scale_again(fit: Fit, before: float) -> None:
    """The rates of the checkpoint were scaled for its batch; this training's may be another."""
    for optimizer in fit.parts.optimizers:
        now = optimizer._allranks_lr_factor
        optimizer._allranks_lr_factor = before
        scale_rates([optimizer], fit.parts.scheduler, now)


def _lr_factor(fit: Fit) -> float:
    factors = [float(each._allranks_lr_factor) for each in fit.parts.optimizers]
    return factors[0] if factors else 1.0


def _criterion_entries(fit: Fit) -> dict[str, Any] | None:
    """What the criterion learns or keeps, live."""
    criterion = fit.engine.objective.criterion
    return None if criterion is None else dict(criterion.state_dict(keep_vars=True))


def _without_code(value: Any) -> Any:
    """A scheduler's state without functions, which are code and not state."""
    if isinstance(value, dict):
        return {key: _without_code(each) for key, each in value.items() if not callable(each)}
    if isinstance(value, (list, tuple)):
        return [_without_code(each) for each in value]
    return value
