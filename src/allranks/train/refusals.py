"""Wishes that contradict each other, or that would quietly be ignored, are told before training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from torch import nn

from allranks.errors import UsageError
from allranks.train.config import TrainConfig
from allranks.train.data import DistributedLoader
from allranks.train.schedule import stepping
from allranks.train.strategies.base import Strategy

if TYPE_CHECKING:
    from allranks.train.trainer import Trainer

_STEPPING = ("accumulate", "clip_norm", "clip_value", "warmup_steps", "ema")
_OWN_LOOP = {
    "nprocs", "backend", "compute_setup", "strategy", "timeout", "batch_size_is", "shard_iterable",
    "audit", "prefetch", "precision", "dtype", "accumulate", "clip_norm", "clip_value", "fused",
    "activation_checkpointing", "sync_batchnorm", "seed", "deterministic", "warmup_steps",
    "deadline_margin",
}  # fmt: skip


def check_fit(
    trainer: Trainer, loader: DistributedLoader, val_loader: DistributedLoader | None
) -> None:
    """The data against what the configuration waits for."""
    config = trainer.config
    if loader.endless and config.max_steps is None and config.max_time is None:
        raise UsageError(
            "The training data never ends, so an epoch does not either.\n"
            "Give max_steps=… or max_time='2h'."
        )
    plateaus = [each for each in stepping(trainer.scheduler) if _is_plateau(each)]
    if plateaus and config.scheduler_every == "step":
        raise UsageError(
            "ReduceLROnPlateau looks at a metric, which there is one of per epoch: "
            "TrainConfig(scheduler_every='epoch')."
        )
    if any(isinstance(each, type) for each in stepping(trainer.scheduler)):
        raise UsageError("scheduler= is a class: give an object, made from the optimizer.")
    never = not config.val_every and not config.val_every_steps and val_loader is not None
    if config.patience is not None and never and (config.monitor or "val_").startswith("val_"):
        raise UsageError(f"patience={config.patience} looks at validations; val_every=0 has none.")
    waits = config.patience is not None or config.checkpoint_best_only
    if waits and (config.monitor or "").startswith("val_") and val_loader is None:
        raise UsageError(
            f"monitor='{config.monitor}' is measured on validation data, and there is none.\n"
            "Use trainer.fit(train, val), or monitor='train_loss'."
        )


def _is_plateau(scheduler: Any) -> bool:
    return type(scheduler).__name__ == "ReduceLROnPlateau"


def check_kinds(model: Any, config: Any) -> None:
    """The two arguments of a Trainer that are most often something else."""
    if not isinstance(model, nn.Module):
        raise UsageError(f"The model is a {type(model).__name__}, not a torch.nn.Module.")
    if not isinstance(config, TrainConfig):
        raise UsageError(
            f"The config is a {type(config).__name__}: Trainer(model, optimizer, TrainConfig(…))."
        )


def check_optimizers(optimizers: Iterable[Any], objective: nn.Module) -> None:
    """An optimizer that holds none of the model's parameters trains nothing."""
    known = {id(parameter) for parameter in objective.parameters()}
    for optimizer in optimizers:
        held = [p for group in optimizer.param_groups for p in group["params"]]
        if held and not any(id(parameter) in known for parameter in held):
            raise UsageError(
                f"{type(optimizer).__name__} holds no parameter of this model.\n"
                "Make it from the same model: torch.optim.AdamW(model.parameters())."
            )


def check_wishes(strategy: Strategy, config: TrainConfig, optimizers: Sequence[Any]) -> None:
    """What the configuration asks for and the strategy cannot do."""
    refuse_wish(strategy, "several optimizers", len(optimizers) > 1)
    refuse_wish(strategy, "ema", config.ema is not None)
    refuse_wish(strategy, "clip_value", config.clip_value is not None)
    refuse_wish(strategy, "compile", config.compile not in ("auto", False))


def refuse_wish(strategy: Strategy, wish: str, asked: bool = True) -> None:
    """An error where something is asked for that this strategy cannot do."""
    reason = strategy.unsupported_reason(wish) if asked else ""
    if reason:
        raise UsageError(f"{wish} does not work with the {strategy.name} strategy: {reason}")


def refuse_stepping(config: TrainConfig, who: str, but: Sequence[str] = ()) -> None:
    """``who`` makes the step by itself: what the Trainer would do around it has no place."""
    defaults = {entry.name: entry.default for entry in fields(config)}
    for name in _STEPPING:
        if name not in but and getattr(config, name) != defaults[name]:
            raise UsageError(f"{who}: {name}={getattr(config, name)} does not work with it.")
    if config.precision == "fp16":
        raise UsageError(f"{who}: precision='fp16' does not work with it. Use 'bf16'.")


def refuse_ignored(given: Iterable[str]) -> None:
    """Fields of `TrainConfig` that one's own loop must do itself."""
    known = {entry.name for entry in fields(TrainConfig)}
    for name in given:
        if name in known and name not in _OWN_LOOP:
            raise UsageError(
                f"prepare() does not use '{name}': in a loop of your own that is yours to do.\n"
                f"It takes {', '.join(sorted(_OWN_LOOP))}."
            )
