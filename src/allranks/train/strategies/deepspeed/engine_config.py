"""Read a DeepSpeed configuration, complete it from the training's options, and check it before the start.

Nothing here imports torch or deepspeed. `complete_config` fills in "auto" as the Hugging Face integrations
use it; every contradiction between the file and `TrainConfig` is an error with both values.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from allranks.core.lenient_json import LenientJSONError, read_lenient
from allranks.errors import UsageError, did_you_mean
from allranks.train.strategies.deepspeed.config_sections import (
    check_optimizer,
    complete_batch,
    complete_scheduler,
)

KNOWN = (
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
    "optimizer", "scheduler", "managed_gradient_accumulation", "communication_data_type",
    "seq_parallel_communication_data_type", "prescale_gradients", "gradient_predivide_factor",
    "gradient_allreduce_op", "sparse_gradients", "fp16", "bf16", "bfloat16", "amp",
    "torch_autocast", "gradient_clipping", "zero_optimization", "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer", "steps_per_print", "wall_clock_breakdown", "dump_state",
    "memory_breakdown", "disable_python_gc", "disable_allgather", "aio", "flops_profiler",
    "activation_checkpointing", "sparse_attention", "data_efficiency", "curriculum_learning",
    "elasticity", "autotuning", "comms_logger", "tensorboard", "wandb", "comet", "csv_monitor",
    "compression_training", "checkpoint", "data_types", "dataloader_drop_last", "pipeline",
    "tensor_parallel", "sequence_parallel_size", "data_parallel_size", "vocabulary_size",
    "eigenvalue", "quantize_training", "progressive_layer_drop", "hybrid_engine", "nebula",
    "use_data_before_expert_parallelism", "compile", "timers", "weight_quantization",
    "graph_harvesting", "log_level", "zenflow", "expert_parallel", "keep_in_fp32_modules",
)  # fmt: skip
_HALF = ("fp16", "bf16")
_DEVICES = ("cpu", "nvme", "none")


@dataclass(frozen=True)
class SharedOptions:
    """The training's options that a DeepSpeed configuration may also set."""

    precision: str = "fp32"
    accumulate: int = 1
    clip_norm: float | None = None
    warmup_steps: int = 0
    world: int = 1
    optimizer: str | None = None
    """The class of the Trainer's optimizer."""
    optimizer_params: Mapping[str, Any] = field(default_factory=dict)
    """Its options, such as lr."""


def read_config(source: str | Path | Mapping[str, Any] | None) -> tuple[dict[str, Any], list[str]]:
    """Return the configuration and warnings. A file may have comments and trailing commas."""
    if source is None:
        return {}, []
    if isinstance(source, Mapping):
        return copy.deepcopy(dict(source)), []
    path = Path(source)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"The DeepSpeed configuration {path}: {error.strerror}.") from None
    try:
        value, corrections = read_lenient(text)
    except LenientJSONError as error:
        raise UsageError(f"The DeepSpeed configuration {path}, {error}") from None
    if not isinstance(value, dict):
        raise UsageError(
            f"The DeepSpeed configuration {path} is a {type(value).__name__}, not an object {{…}}."
        )
    warned = [f"{path}, line {each.line}: {each.what} is not JSON" for each in corrections]
    if warned:
        warned[-1] += "; see deepspeed.json in the run folder for how it was read"
    return value, warned


def add_shorthands(
    config: dict[str, Any],
    stage: int | None,
    offload_optimizer: str | None,
    offload_parameters: str | None,
) -> dict[str, Any]:
    """Add the sections for ``DeepSpeed(stage=3, offload_optimizer="cpu")``; the default is ZeRO 1."""
    made = copy.deepcopy(config)
    if not config and stage is None:
        stage = 3 if offload_parameters else 1
    zero = (
        made.setdefault("zero_optimization", {})
        if _asks(stage, offload_optimizer, offload_parameters)
        else {}
    )
    wanted = {
        "stage": stage,
        "offload_optimizer": _offload("offload_optimizer", offload_optimizer),
        "offload_param": _offload("offload_parameters", offload_parameters),
    }
    for name, value in wanted.items():
        if value is None:
            continue
        there = zero.get(name, value)
        if there not in (value, "auto"):
            raise UsageError(
                f"DeepSpeed({name}={value!r}) contradicts zero_optimization.{name} = {there!r} in the "
                "configuration. Use one of them."
            )
        zero[name] = value
    return made


def _asks(*values: Any) -> bool:
    return any(value is not None for value in values)


def _offload(name: str, where: str | None) -> dict[str, Any] | None:
    """Return the section for ``cpu``, ``none`` or ``nvme:/path``."""
    if where is None:
        return None
    device, _, path = where.partition(":")
    if device not in _DEVICES or (device == "nvme") != bool(path):
        raise UsageError(f"{name}={where!r}: must be 'cpu', 'nvme:/local/disk' or 'none'.")
    return {"device": device, **({"nvme_path": path} if path else {})}


def complete_config(
    config: Mapping[str, Any], options: SharedOptions
) -> tuple[dict[str, Any], SharedOptions, list[str]]:
    """Return the completed and checked configuration, the resulting options, and warnings."""
    made = copy.deepcopy(dict(config))
    warned = [
        f"DeepSpeed does not know '{name}' in its configuration.{did_you_mean(name, KNOWN)}"
        for name in made
        if name not in KNOWN
    ]
    stage = _stage(made)
    options = _precision(made, options)
    options = _clipping(made, options)
    complete_batch(made, options.accumulate, options.world)
    check_optimizer(made, options.optimizer, stage)
    left = complete_scheduler(made, options.warmup_steps, options.optimizer_params)
    dropped = [
        name
        for name in _drop_auto(made)
        if not name.startswith(("zero_optimization.", "scheduler."))
    ]
    warned += [f"'auto' for {name} is left to DeepSpeed's default." for name in dropped]
    return made, replace(options, warmup_steps=left), warned


def _stage(config: dict[str, Any]) -> int:
    zero = config.get("zero_optimization", {})
    if not isinstance(zero, dict):
        raise UsageError(f'zero_optimization = {zero!r}: must be {{"stage": 0 to 3, …}}.')
    if zero.get("stage") == "auto":
        zero["stage"] = 1
    stage = zero.get("stage", 0)
    if stage not in (0, 1, 2, 3) or isinstance(stage, bool):
        raise UsageError(f"zero_optimization.stage = {stage!r}: must be 0, 1, 2 or 3.")
    device = (zero.get("offload_param") or {}).get("device", "none")
    if device != "none" and stage != 3:
        raise UsageError(
            f"Offloading parameters needs ZeRO 3, but zero_optimization.stage is {stage}."
        )
    where = (zero.get("offload_optimizer") or {}).get("device", "none")
    if (where != "none" and stage == 0) or (where == "nvme" and stage != 3):
        needs = "3" if where == "nvme" else "1, 2 or 3"
        raise UsageError(
            f"Offloading the optimizer to {where} needs ZeRO {needs}, but zero_optimization.stage is {stage}."
        )
    return int(stage)


def stage_of(config: Mapping[str, Any]) -> int:
    """Return the ZeRO stage of a completed configuration."""
    return int(config.get("zero_optimization", {}).get("stage", 0))


def _precision(config: dict[str, Any], options: SharedOptions) -> SharedOptions:
    """Combine the sections fp16 and bf16 (or torch_autocast) with TrainConfig's precision."""
    if "bfloat16" in config:
        config["bf16"] = config.pop("bfloat16")
    asked = options.precision if options.precision in _HALF else None
    on = [name for name in _HALF if _enabled(config.get(name)) is True]
    cast = config.get("torch_autocast")
    if _enabled(cast) is True:
        on.append({"float16": "fp16"}.get(str(cast.get("dtype")), "bf16"))  # type: ignore[union-attr]
    if len(on) > 1:
        raise UsageError(
            f"The DeepSpeed configuration enables {' and '.join(on)}. Enable one of them."
        )
    if asked and on and on != [asked]:
        raise UsageError(
            f"TrainConfig(precision='{asked}'), but the DeepSpeed configuration enables {on[0]}.\n"
            f'Use precision=\'{on[0]}\', or "{on[0]}": {{"enabled": "auto"}}.'
        )
    if asked and not on and _enabled(config.get(asked)) is False:
        raise UsageError(
            f"TrainConfig(precision='{asked}'), but the DeepSpeed configuration has "
            f'"{asked}": {{"enabled": false}}.\nUse precision=\'fp32\', or "enabled": "auto".'
        )
    for name in _HALF:
        if name in config or (name == asked and not on):
            section = config.setdefault(name, {})
            section["enabled"] = _enabled(section) is True or (name == asked and not on)
    return replace(options, precision=on[0] if on else options.precision)


def _enabled(section: Any) -> Any:
    """Return True, False, "auto", or None if it is not set."""
    if not isinstance(section, dict) or "enabled" not in section:
        return None
    return section["enabled"]


def _clipping(config: dict[str, Any], options: SharedOptions) -> SharedOptions:
    there = config.get("gradient_clipping")
    if there == "auto" or there is None or (there == 0 and options.clip_norm is None):
        config["gradient_clipping"] = options.clip_norm or 0.0
        return options
    if options.clip_norm is not None and float(there) != options.clip_norm:
        raise UsageError(
            f"TrainConfig(clip_norm={options.clip_norm}), but gradient_clipping is {there} in the DeepSpeed "
            'configuration.\nUse one of them; "auto" takes TrainConfig\'s.'
        )
    return replace(options, clip_norm=float(there))


def _drop_auto(config: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Remove values that are still "auto" and yield their names."""
    for name, value in [*config.items()]:
        if value == "auto":
            del config[name]
            yield prefix + name
        elif isinstance(value, dict):
            yield from _drop_auto(value, f"{prefix}{name}.")
