"""Combine the optimizer, scheduler and batch sections of a DeepSpeed configuration with the Trainer's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from allranks.errors import UsageError, did_you_mean

ELEMENTWISE = (
    "Adam", "AdamW", "SGD", "RMSprop", "Adadelta", "NAdam", "RAdam", "Adamax", "ASGD", "Rprop", "Lion",
    "FusedAdam", "DeepSpeedCPUAdam", "FusedLion", "DeepSpeedCPULion",
)  # fmt: skip
"""Element-wise optimizers, which can step flat partitions of the parameters."""
SCHEDULES = ("LRRangeTest", "OneCycle", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR")
_EXAMPLE = '"optimizer": {"type": "AdamW", "params": {"lr": 3e-4}}'
_TRAIN, _MICRO, _STEPS = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
)


def check_optimizer(config: dict[str, Any], given: str | None, stage: int) -> None:
    """Check that there is exactly one optimizer; ``given`` is the class of the Trainer's."""
    section = config.get("optimizer")
    if section is None and given is None:
        raise UsageError(
            "There is no optimizer, neither in Trainer(model, optimizer, …) nor in the DeepSpeed "
            f"configuration, and ZeRO needs one.\nPass one to the Trainer, or add {_EXAMPLE}."
        )
    if section is not None and given is not None:
        _use_given(config, section, given)
    elif section is not None:
        _fill_section(section)
    if given is not None:
        _allow(config, given, stage)


def _use_given(config: dict[str, Any], section: Any, given: str) -> None:
    """Use the Trainer's optimizer where all values of the section are "auto"."""
    kind, params = _type(section), section.get("params", {})
    if kind.lower() != given.lower() or any(value != "auto" for value in params.values()):
        raise UsageError(
            f"There are two optimizers: the Trainer's {given} and the DeepSpeed configuration's {kind}.\n"
            f'Use Trainer(model, None, …), or remove "optimizer" from the configuration.'
        )
    del config["optimizer"]


def _fill_section(section: Any) -> None:
    kind, params = _type(section), section.setdefault("params", {})
    if params.get("lr") == "auto":
        raise UsageError(
            f'lr is "auto" for the DeepSpeed configuration\'s {kind}, but the Trainer has no optimizer to take it '
            "from.\nSet a number, or pass an optimizer to the Trainer."
        )
    for name in [name for name, value in params.items() if value == "auto"]:
        del params[name]


def _type(section: Any) -> str:
    if not isinstance(section, dict) or not isinstance(section.get("type"), str):
        raise UsageError(
            f"optimizer = {section!r} in the DeepSpeed configuration has no type: {_EXAMPLE}."
        )
    return str(section["type"])


def _allow(config: dict[str, Any], given: str, stage: int) -> None:
    config.setdefault("zero_force_ds_cpu_optimizer", False)  # torch's optimizers work on CPUs
    if stage == 0 or config.get("zero_allow_untested_optimizer") is True:
        return
    if given not in ELEMENTWISE:
        why = (
            "DeepSpeed would replace it by another one, with one learning rate for all groups"
            if given == "Adagrad"
            else "ZeRO 1 to 3 pass flat partitions of the parameters to the optimizer, so it must be element-wise"
        )
        raise UsageError(
            f"{given} with ZeRO stage {stage}: {why}.\nUse stage=0 or another strategy, or one of "
            f"{', '.join(sorted(ELEMENTWISE)[:9])}; if {given} is element-wise, set "
            '"zero_allow_untested_optimizer": true.'
        )
    config["zero_allow_untested_optimizer"] = True


def complete_scheduler(config: dict[str, Any], warmup: int, options: Mapping[str, Any]) -> int:
    """Fill in "auto" of the schedule as far as known; return the warm-up steps left to the Trainer."""
    section = config.get("scheduler")
    if section is None:
        return warmup
    kind = section.get("type") if isinstance(section, dict) else None
    if kind not in SCHEDULES:
        raise UsageError(
            f"scheduler.type = {kind!r} in the DeepSpeed configuration: must be one of {', '.join(SCHEDULES)}."
            f"{did_you_mean(str(kind), SCHEDULES)}"
        )
    params = section.setdefault("params", {})
    takes = params.get("warmup_num_steps") == "auto"
    if warmup and not takes:
        raise UsageError(
            f"TrainConfig(warmup_steps={warmup}) and the DeepSpeed configuration's {kind} would both change the "
            'learning rate.\nUse one of them; "warmup_num_steps": "auto" takes TrainConfig\'s.'
        )
    if takes:
        params["warmup_num_steps"] = warmup
    rate = config.get("optimizer", {}).get("params", {}).get("lr", options.get("lr"))
    for name, value in (("warmup_max_lr", rate), ("warmup_min_lr", 0.0)):
        if params.get(name) == "auto" and value is not None:
            params[name] = value
    return 0


def schedule_params(section: Mapping[str, Any], total_steps: int | None) -> dict[str, Any]:
    """Return the schedule's parameters with the total number of steps filled in."""
    params = dict(section.get("params", {}))
    needs = section["type"] in ("WarmupDecayLR", "WarmupCosineLR")
    if params.get("total_num_steps", "auto" if needs else 0) == "auto":
        if total_steps is None:
            raise UsageError(
                f"The DeepSpeed configuration's {section['type']} needs total_num_steps, but the length of this "
                "data is unknown.\nSet total_num_steps, or use TrainConfig(max_steps=…)."
            )
        params["total_num_steps"] = total_steps
    return params


def complete_batch(config: dict[str, Any], accumulate: int, world: int) -> None:
    """Fill in the batch sizes; raise if train_batch_size is not micro-batch × accumulation × ranks."""
    steps = _given(config, _STEPS)
    if steps is not None and steps != accumulate:
        raise UsageError(
            f"{_STEPS} is {steps} in the DeepSpeed configuration, but TrainConfig(accumulate={accumulate}).\n"
            f'Use TrainConfig(accumulate={steps}), or "{_STEPS}": "auto".'
        )
    config[_STEPS] = accumulate
    train, micro = _given(config, _TRAIN), _given(config, _MICRO)
    others = accumulate * world
    if train is not None and micro is None and train % others == 0:
        micro = train // others
    if train is not None and (micro is None or micro * others != train):
        raise UsageError(_unequal(train, micro, accumulate, world))
    for name, value in ((_MICRO, micro), (_TRAIN, None if micro is None else micro * others)):
        if value is None:
            config.pop(name, None)  # "auto": filled in from the data
        else:
            config[name] = value


def _given(config: Mapping[str, Any], name: str) -> int | None:
    value = config.get(name)
    if value is None or value == "auto":
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(
            f"{name} = {value!r} in the DeepSpeed configuration: must be a whole number from 1."
        )
    return value


def _unequal(train: int, micro: int | None, accumulate: int, world: int) -> str:
    others = accumulate * world
    ranks = f"{world} rank{'s' if world > 1 else ''}"
    if micro is None:
        near = max(1, train // others) * others
        return (
            f"{_TRAIN} {train} is not a multiple of {_STEPS} {accumulate} × {ranks} = {others}.\n"
            f'Change {_TRAIN} to {near}, or set it to "auto".'
        )
    change = f"Change {_TRAIN} to {micro * others}"
    if train % others == 0:
        change += f" or {_MICRO} to {train // others}"
    return (
        f"{_TRAIN} {train} is not {_MICRO} {micro} × {_STEPS} {accumulate} × {ranks}, which is "
        f'{micro * others}.\n{change}; "auto" is filled in.'
    )


def check_batch_size(config: dict[str, Any], batch_size: int | None, world: int) -> int | None:
    """Check the DataLoader's batch size per rank, or fill it in; return the micro-batch size if known."""
    micro = config.get(_MICRO)
    if batch_size is None:
        return micro
    if micro is not None and micro != batch_size:
        every = f", or {micro * world} with batch_size_is='global'" if world > 1 else ""
        raise UsageError(
            f"{_MICRO} is {micro} in the DeepSpeed configuration, but the DataLoader yields {batch_size} samples "
            f'per rank.\nUse DataLoader(…, batch_size={micro}){every}, or "{_MICRO}": "auto" '
            f'(and "{_TRAIN}": "auto").'
        )
    config[_MICRO] = batch_size
    config[_TRAIN] = batch_size * config[_STEPS] * world
    return batch_size
