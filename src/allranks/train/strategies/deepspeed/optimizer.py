"""Who brings the optimizer and the learning-rate schedule: the Trainer or DeepSpeed's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from allranks.errors import UsageError, did_you_mean

ELEMENTWISE = (
    "Adam", "AdamW", "SGD", "RMSprop", "Adadelta", "NAdam", "RAdam", "Adamax", "ASGD", "Rprop", "Lion",
    "FusedAdam", "DeepSpeedCPUAdam", "FusedLion", "DeepSpeedCPULion",
)  # fmt: skip
"""Optimizers that treat every number by itself, so that they may be given flat pieces of the parameters."""
SCHEDULES = ("LRRangeTest", "OneCycle", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR")
_EXAMPLE = '"optimizer": {"type": "AdamW", "params": {"lr": 3e-4}}'


def settle_optimizer(config: dict[str, Any], given: str | None, stage: int) -> None:
    """Exactly one optimizer; ``given`` is the class of the Trainer's."""
    section = config.get("optimizer")
    if section is None and given is None:
        raise UsageError(
            "There is no optimizer: neither Trainer(model, optimizer, …) has one nor the DeepSpeed "
            f"configuration, and ZeRO shares out an optimizer's state.\nGive the Trainer one, or write {_EXAMPLE}."
        )
    if section is not None and given is not None:
        _take_given(config, section, given)
    elif section is not None:
        _fill_section(section)
    if given is not None:
        _allow(config, given, stage)


def _take_given(config: dict[str, Any], section: Any, given: str) -> None:
    """All "auto" means "what the script has": the Trainer's optimizer is the one."""
    kind, params = _type(section), section.get("params", {})
    if kind.lower() != given.lower() or any(value != "auto" for value in params.values()):
        raise UsageError(
            f"There are two optimizers: the Trainer's {given} and the DeepSpeed configuration's {kind}.\n"
            f'Use Trainer(model, None, …), or take "optimizer" out of the configuration.'
        )
    del config["optimizer"]


def _fill_section(section: Any) -> None:
    kind, params = _type(section), section.setdefault("params", {})
    if params.get("lr") == "auto":
        raise UsageError(
            f'lr is "auto" for the DeepSpeed configuration\'s {kind}, and the Trainer has no optimizer to take it '
            "from.\nWrite the number, or give the Trainer an optimizer."
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
    config.setdefault("zero_force_ds_cpu_optimizer", False)  # torch's own work on CPUs
    if stage == 0 or config.get("zero_allow_untested_optimizer") is True:
        return
    if given not in ELEMENTWISE:
        why = (
            "DeepSpeed would put another one in its place, with one learning rate for all groups"
            if given == "Adagrad"
            else "ZeRO 1 to 3 give an optimizer flat pieces of the parameters, which only suits those that "
            "treat every number by itself"
        )
        raise UsageError(
            f"{given} with ZeRO stage {stage}: {why}.\nUse stage=0 or another strategy, or one of "
            f"{', '.join(sorted(ELEMENTWISE)[:9])}; if it does suit {given}, say "
            '"zero_allow_untested_optimizer": true.'
        )
    config["zero_allow_untested_optimizer"] = True


def settle_scheduler(config: dict[str, Any], warmup: int, options: Mapping[str, Any]) -> int:
    """Fill the schedule's "auto" as far as it is known; returns the warm-up that is left to the Trainer."""
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
            f"TrainConfig(warmup_steps={warmup}) and the DeepSpeed configuration's {kind} would both move the "
            'learning rate.\nGive one of them; "warmup_num_steps": "auto" takes TrainConfig\'s.'
        )
    if takes:
        params["warmup_num_steps"] = warmup
    rate = config.get("optimizer", {}).get("params", {}).get("lr", options.get("lr"))
    for name, value in (("warmup_max_lr", rate), ("warmup_min_lr", 0.0)):
        if params.get(name) == "auto" and value is not None:
            params[name] = value
    return 0


def schedule_params(section: Mapping[str, Any], total_steps: int | None) -> dict[str, Any]:
    """The schedule's parameters, with the number of steps now that it is known."""
    params = dict(section.get("params", {}))
    needs = section["type"] in ("WarmupDecayLR", "WarmupCosineLR")
    if params.get("total_num_steps", "auto" if needs else 0) == "auto":
        if total_steps is None:
            raise UsageError(
                f"The DeepSpeed configuration's {section['type']} needs total_num_steps, and this data does not "
                "tell how many steps there are.\nWrite total_num_steps, or use TrainConfig(max_steps=…)."
            )
        params["total_num_steps"] = total_steps
    return params
