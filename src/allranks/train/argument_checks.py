"""Checks before training: options that contradict each other, or would silently be ignored."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from torch import nn

from allranks.errors import UsageError
from allranks.train.config import TrainConfig
from allranks.train.data import DistributedLoader
from allranks.train.step.optimizer_settings import scheduler_list
from allranks.train.strategies.base import Strategy

if TYPE_CHECKING:
    pass

_STEP_OPTIONS = ("accumulate", "clip_norm", "clip_value", "warmup_steps", "ema")
_PREPARE_FIELDS = {
    "nprocs", "backend", "compute_setup", "strategy", "timeout", "batch_size_is", "shard_iterable",
    "audit", "prefetch", "precision", "dtype", "accumulate", "clip_norm", "clip_value", "fused",
    "activation_checkpointing", "sync_batchnorm", "seed", "deterministic", "warmup_steps",
    "deadline_margin",
}  # fmt: skip


def check_fit(
    config: TrainConfig,
    scheduler: Any,
    loader: DistributedLoader,
    val_loader: DistributedLoader | None,
) -> None:
    """Raise when the configuration waits for something that the data never gives."""
    if loader.endless and config.max_steps is None and config.max_time is None:
        raise UsageError(
            "The training data never ends, so an epoch does not either.\n"
            "Give max_steps=… or max_time='2h'."
        )
    plateaus = [each for each in scheduler_list(scheduler) if _is_plateau(each)]
    if plateaus and config.scheduler_every == "step":
        raise UsageError(
            "ReduceLROnPlateau needs a metric, which is measured once per epoch: "
            "TrainConfig(scheduler_every='epoch')."
        )
    if any(isinstance(each, type) for each in scheduler_list(scheduler)):
        raise UsageError(
            "scheduler= is a class: give an object, such as StepLR(optimizer, step_size=10)."
        )
    never = not config.val_every and not config.val_every_steps and val_loader is not None
    if config.patience is not None and never and (config.monitor or "val_").startswith("val_"):
        raise UsageError(
            f"patience={config.patience} counts validations, and val_every=0 switches them off."
        )
    monitors = config.patience is not None or config.checkpoint_best_only
    if monitors and (config.monitor or "").startswith("val_") and val_loader is None:
        raise UsageError(
            f"monitor='{config.monitor}' is measured on validation data, and there is none.\n"
            "Use trainer.fit(train, val), or monitor='train_loss'."
        )


def _is_plateau(scheduler: Any) -> bool:
    return type(scheduler).__name__ == "ReduceLROnPlateau"


def check_kinds(model: Any, config: Any) -> None:
    """Raise for a model or config of another type: the two most frequent mistakes."""
    if not isinstance(model, nn.Module):
        raise UsageError(f"The model is a {type(model).__name__}, not a torch.nn.Module.")
    if not isinstance(config, TrainConfig):
        raise UsageError(
            f"The config is a {type(config).__name__}: Trainer(model, optimizer, TrainConfig(…))."
        )


def check_optimizers(optimizers: Iterable[Any], objective: nn.Module) -> None:
    """Raise for an optimizer that has none of the model's parameters: it would train nothing."""
    known = {id(parameter) for parameter in objective.parameters()}
    for optimizer in optimizers:
        held = [p for group in optimizer.param_groups for p in group["params"]]
        if held and not any(id(parameter) in known for parameter in held):
            raise UsageError(
                f"{type(optimizer).__name__} has no parameter of this model.\n"
                "Make it from the same model: torch.optim.AdamW(model.parameters())."
            )


def check_options(strategy: Strategy, config: TrainConfig, optimizers: Sequence[Any]) -> None:
    """Raise for options that the strategy cannot do."""
    refuse_option(strategy, "several optimizers", len(optimizers) > 1)
    refuse_option(strategy, "ema", config.ema is not None)
    refuse_option(strategy, "clip_value", config.clip_value is not None)
    refuse_option(strategy, "compile", config.compile not in ("auto", False))


def refuse_option(strategy: Strategy, option: str, asked: bool = True) -> None:
    """Raise when an option is used that this strategy cannot do."""
    reason = strategy.unsupported_reason(option) if asked else ""
    if reason:
        raise UsageError(f"{option} does not work with the {strategy.name} strategy: {reason}")


def refuse_step_options(config: TrainConfig, who: str, but: Sequence[str] = ()) -> None:
    """Raise for options of the step when ``who`` makes the whole step."""
    defaults = {entry.name: entry.default for entry in fields(config)}
    for name in _STEP_OPTIONS:
        if name not in but and getattr(config, name) != defaults[name]:
            raise UsageError(f"{who}: {name}={getattr(config, name)} does not work with it.")
    if config.precision == "fp16":
        raise UsageError(f"{who}: precision='fp16' does not work with it. Use 'bf16'.")


def refuse_unused_fields(given: Iterable[str]) -> None:
    """Raise for fields of `TrainConfig` that `prepare` does not use."""
    known = {entry.name for entry in fields(TrainConfig)}
    for name in given:
        if name in known and name not in _PREPARE_FIELDS:
            raise UsageError(
                f"prepare() does not use '{name}': do that in your own loop.\n"
                f"It takes {', '.join(sorted(_PREPARE_FIELDS))}."
            )
