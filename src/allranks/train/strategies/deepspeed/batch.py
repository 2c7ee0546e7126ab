"""train_batch_size = train_micro_batch_size_per_gpu × gradient_accumulation_steps × ranks, said in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from allranks.errors import UsageError

_TRAIN, _MICRO, _STEPS = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
)


def settle_batch(config: dict[str, Any], accumulate: int, world: int) -> None:
    """Fill in what follows from the rest; an error where the three numbers do not fit the ranks."""
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
            config.pop(name, None)  # "auto": known with the data
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
            f"{_TRAIN} {train} is no multiple of {_STEPS} {accumulate} × {ranks} = {others}.\n"
            f'Change {_TRAIN} to {near}, or write "auto" for it.'
        )
    change = f"Change {_TRAIN} to {micro * others}"
    if train % others == 0:
        change += f" or {_MICRO} to {train // others}"
    return (
        f"{_TRAIN} {train} is not {_MICRO} {micro} × {_STEPS} {accumulate} × {ranks}, which is "
        f'{micro * others}.\n{change}; "auto" is filled in.'
    )


def meet_data(config: dict[str, Any], batch_size: int | None, world: int) -> int | None:
    """Check the DataLoader's batch of one rank, or take it; returns the micro-batch that is known."""
    micro = config.get(_MICRO)
    if batch_size is None:
        return micro
    if micro is not None and micro != batch_size:
        every = f", or {micro * world} with batch_size_is='global'" if world > 1 else ""
        raise UsageError(
            f"{_MICRO} is {micro} in the DeepSpeed configuration, but the DataLoader gives {batch_size} samples "
            f'to a rank.\nUse DataLoader(…, batch_size={micro}){every}, or "{_MICRO}": "auto" '
            f'(and "{_TRAIN}": "auto").'
        )
    config[_MICRO] = batch_size
    config[_TRAIN] = batch_size * config[_STEPS] * world
    return batch_size
