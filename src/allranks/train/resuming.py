"""What a checkpoint holds, and going on from one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from allranks.errors import UsageError
from allranks.strategies.base import Strategy
from allranks.train import checkpoint
from allranks.train.schedule import scale_rates, stepping
from allranks.train.seeds import random_state, set_random_state
from allranks.train.session import share_result

if TYPE_CHECKING:
    from allranks.train.loop import Fit
    from allranks.train.trainer import Trainer


def snapshot(trainer: Trainer, fit: Fit) -> dict[str, Any]:
    """The whole training as tensors and plain containers; collective, complete on rank 0."""
    engine, state = fit.engine, fit.state
    strategy, here = engine.strategy, engine.session.world
    states: dict[str, Any] = {
        "model": strategy.model_state(),
        "optimizers": [strategy.optimizer_state(each) for each in fit.parts.optimizers],
        "schedulers": [_plain(each.state_dict()) for each in stepping(fit.parts.scheduler)],
        "scaler": None if engine.precision.scaler is None else engine.precision.scaler.state_dict(),
        "average": _average_state(fit),
        "criterion": _criterion_state(fit),
        "strategy": {strategy.name: strategy.extra_state()},
        "callbacks": fit.callbacks.state_dict(),
        "random": _gathered(random_state(), here.size),
        "progress": {
            "epoch": state.epoch,
            "step": state.step,
            "batch": state.batch,
            "batches": fit.feed.batches,
            "closing": state.closing,
            "global_batch": fit.feed.global_batch,
            "lr_factor": _lr_factor(fit),
            "seed": engine.session.seed,
            "world_size": here.size,
        },
        "metrics": dict(trainer.metrics),
    }
    return states


def resume(trainer: Trainer, fit: Fit) -> bool:
    """Continue where a checkpoint stands, if there is one. Collective; rank 0 alone reads it."""
    session = fit.engine.session
    here, device = session.world, session.device
    large: dict[str, Any] = {}  # stays on rank 0
    outline = share_result(lambda: _read(trainer, fit, large), here, device)
    if outline is None:
        return False
    state = outline | large
    _load(fit, state)
    if here.size == len(state["random"]):
        set_random_state(state["random"][here.rank])
    trainer.metrics.update(state["metrics"])
    _set_position(fit, state["progress"])
    return True


_WHOLE = ("model", "optimizers", "average")
"""What rank 0 hands out by itself, piece by piece."""


def _read(trainer: Trainer, fit: Fit, large: dict[str, Any]) -> dict[str, Any] | None:
    """On rank 0: the large parts for itself, and an outline without them for all."""
    path = checkpoint.find(trainer.config.resume, trainer.folder)
    if path is None:
        return None
    state = checkpoint.read(path)
    for what, saved, here in (
        ("optimizers", state["optimizers"], fit.parts.optimizers),
        ("schedulers", state["schedulers"], stepping(fit.parts.scheduler)),
    ):
        if len(saved) != len(here):
            raise UsageError(f"{path} holds {len(saved)} {what}, this training has {len(here)}.")
    outline = {name: value for name, value in state.items() if name not in _WHOLE}
    outline |= {
        "model": {},
        "optimizers": [{} for _ in state["optimizers"]],
        "average": None if state["average"] is None else {},
    }
    large |= {name: state[name] for name in _WHOLE}
    return outline


def _load(fit: Fit, state: dict[str, Any]) -> None:
    strategy, parts = fit.engine.strategy, fit.parts
    strategy.load_model_state(state["model"])
    for optimizer, saved in zip(parts.optimizers, state["optimizers"], strict=True):
        strategy.load_optimizer_state(optimizer, saved)
    for scheduler, saved in zip(stepping(parts.scheduler), state["schedulers"], strict=True):
        scheduler.load_state_dict(saved)
    _scale_again(fit, state["progress"]["lr_factor"])
    if fit.engine.precision.scaler is not None and state["scaler"] is not None:
        fit.engine.precision.scaler.load_state_dict(state["scaler"])
    if parts.average is not None and state["average"] is not None:
        _load_average(fit, state["average"])
    if fit.engine.objective.criterion is not None and state["criterion"] is not None:
        _load_criterion(strategy, fit.engine.objective.criterion, state["criterion"])
    own = state.get("strategy", {}).get(strategy.name)
    if own:
        strategy.load_extra_state(own)
    fit.callbacks.load_state_dict(state["callbacks"])


def _scale_again(fit: Fit, before: float) -> None:
    """The rates of the checkpoint were scaled for its batch; this training's may be another."""
    for optimizer in fit.parts.optimizers:
        now = optimizer._allranks_lr_factor
        optimizer._allranks_lr_factor = before
        scale_rates([optimizer], fit.parts.scheduler, now)


def _lr_factor(fit: Fit) -> float:
    factors = [float(each._allranks_lr_factor) for each in fit.parts.optimizers]
    return factors[0] if factors else 1.0


def _set_position(fit: Fit, progress: dict[str, Any]) -> None:
    """Skip what was seen: in samples, so that another number of ranks goes on at the same place."""
    state = fit.state
    state.epoch, state.step = progress["epoch"], progress["step"]
    state.first_step = fit.parts.steps_done = state.step
    state.closing = progress["closing"]
    before, now = progress["global_batch"], fit.feed.global_batch
    skip = 0 if state.closing == "done" else progress["batch"]
    if skip and skip == progress["batches"] and fit.feed.batches is not None:
        skip = fit.feed.batches  # all of them, however many there are now
    elif skip and before and now and before != now:
        if skip * before % now:
            raise UsageError(
                f"The checkpoint stands at sample {skip * before} of epoch {state.epoch}, which is "
                f"no multiple of the present global batch of {now}.\n"
                f"Use a global batch that divides it, such as {before}."
            )
        skip = skip * before // now
    fit.start_batch = skip


def _criterion_state(fit: Fit) -> dict[str, Any] | None:
    """What the criterion learned or keeps, whole; collective where it is sharded."""
    criterion = fit.engine.objective.criterion
    if criterion is None:
        return None
    entries = criterion.state_dict(keep_vars=True)
    return {name: fit.engine.strategy._on_cpu(value) for name, value in entries.items()}


def _load_criterion(strategy: Strategy, criterion: nn.Module, saved: dict[str, Any]) -> None:
    entries = criterion.state_dict(keep_vars=True)
    with torch.no_grad():
        strategy._assign([(value, saved[name]) for name, value in entries.items()])


def _average_state(fit: Fit) -> dict[str, Any] | None:
    """The averaged weights whole, like the model's own."""
    if fit.parts.average is None:
        return None
    with fit.parts.average.applied():
        return dict(fit.engine.strategy.model_state())


def _load_average(fit: Fit, saved: dict[str, Any]) -> None:
    """Through the model itself, which knows how its parts are shared out."""
    average, strategy = fit.parts.average, fit.engine.strategy
    assert average is not None
    present = strategy.model_state()
    strategy.load_model_state(saved)
    average.restart()
    strategy.load_model_state(present)


def _gathered(own: Any, size: int) -> list[Any]:
    if size == 1:
        return [own]
    every: list[Any] = [None] * size
    dist.all_gather_object(every, own)
    return every


def _plain(value: Any) -> Any:
    """A scheduler's state without functions, which are code and not state."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items() if not callable(each)}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value
