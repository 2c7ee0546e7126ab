"""Choose the strategy; ``auto`` compares the memory that training needs with that of the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from allranks.core.formatting import size
from allranks.errors import UsageError, did_you_mean
from allranks.runtime.world import World
from allranks.runtime.world.communicator import find_communicator
from allranks.train.strategies.base import Strategy, StrategyOptions
from allranks.train.strategies.ddp import DDP
from allranks.train.strategies.single import Single


def _fsdp(**options: Any) -> Strategy:
    """Create FSDP; its import takes half as long as that of torch, so it is not at the top."""
    from allranks.train.strategies.fsdp import FSDP

    return FSDP(**options)


def _deepspeed(**options: Any) -> Strategy:
    from allranks.train.strategies.deepspeed import DeepSpeed

    return DeepSpeed(**options)


def _horovod(**options: Any) -> Strategy:
    from allranks.train.strategies.horovod import Horovod

    return Horovod(**options)


STRATEGIES: dict[str, Callable[..., Strategy]] = {
    "single": Single,
    "ddp": DDP,
    "fsdp": _fsdp,
    "deepspeed": _deepspeed,
    "horovod": _horovod,
}

_MEMORY_FRACTION = 0.7
"""The part of the device's memory for weights, gradients and optimizer state; activations need the rest."""
_COPIES: dict[str, float] = {
    "Adam": 2, "AdamW": 2, "NAdam": 2, "RAdam": 2, "Adamax": 2, "SparseAdam": 2, "Adadelta": 2,
    "Rprop": 2, "Adagrad": 1, "ASGD": 1, "Muon": 1, "Lion": 1, "Adafactor": 0.1,
    "Adam8bit": 0.5, "AdamW8bit": 0.5,
}  # fmt: skip
"""Number of state tensors of a parameter's size, by the optimizer's class."""
_COPIES_UNKNOWN = 2.0


def choose_strategy(
    name_or_strategy: str | Strategy,
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    world: World,
    device: torch.device,
    options: StrategyOptions,
) -> tuple[Strategy, str]:
    """Return the strategy and the reason for it. ``auto`` on several GPUs is collective."""
    if isinstance(name_or_strategy, Strategy):
        return _check_allowed(name_or_strategy, world), f"{name_or_strategy.name}: as given"
    name = name_or_strategy.lower()
    if name == "auto":
        return _choose_automatically(model, optimizers, world, device, options)
    if name not in STRATEGIES:
        known = [*STRATEGIES, "auto"]
        hint = did_you_mean(name, known)
        raise UsageError(f"strategy='{name_or_strategy}': must be one of {', '.join(known)}.{hint}")
    return _check_allowed(STRATEGIES[name](), world), f"{name}: as asked"


def _check_allowed(strategy: Strategy, world: World) -> Strategy:
    if isinstance(strategy, Single) and world.size > 1:
        raise UsageError(
            f"strategy='single' with {world.size} ranks: each would train a separate model. "
            "Use strategy='ddp' (or 'auto'), or start one process."
        )
    return strategy


def _choose_automatically(
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    world: World,
    device: torch.device,
    options: StrategyOptions,
) -> tuple[Strategy, str]:
    if world.size == 1:
        return Single(), "one process: single"
    if device.type != "cuda":
        return DDP(), f"{world.size} ranks on {device.type.upper()}s: ddp"
    count = sum(value.numel() for value in model.parameters())
    needed, memory = training_bytes(model, optimizers), _least_memory(device)
    if options.precision in ("bf16", "fp16"):
        needed += 2 * count  # autocast also keeps the weights in 16 bits
    by = " and ".join(dict.fromkeys(type(entry).__name__ for entry in optimizers))
    with_ = f" with {by}" if by else ""
    sentence = f"{_short(count)} parameters need {size(needed)}{with_}, the GPU has {size(memory)}"
    if needed <= _MEMORY_FRACTION * memory:
        return DDP(), f"{sentence}: ddp"
    return _fsdp(), f"{sentence}, of which {_MEMORY_FRACTION:.0%} may be used for that: fsdp"


def training_bytes(model: nn.Module, optimizers: Sequence[Optimizer]) -> int:
    """Return the bytes of weights, gradients and optimizer state of a rank that holds the whole model."""
    total = float(sum(_size(value) for value in [*model.parameters(), *model.buffers()]))
    total += sum(_size(value) for value in model.parameters() if value.requires_grad)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            held = sum(_size(value) for value in group["params"] if value.requires_grad)
            total += held * _copies(optimizer, group)
    return int(total)


def _copies(optimizer: Optimizer, group: dict[str, object]) -> float:
    """Return how many state tensors of a parameter's size the optimizer keeps."""
    kinds = [kind.__name__ for kind in type(optimizer).__mro__]
    if "SGD" in kinds:
        return 1.0 if group.get("momentum") else 0.0
    if "RMSprop" in kinds:
        return 1.0 + bool(group.get("momentum")) + bool(group.get("centered"))
    if "LBFGS" in kinds:
        return 2.0 * float(str(group.get("history_size", 100))) + 2.0
    found = next((_COPIES[kind] for kind in kinds if kind in _COPIES), _COPIES_UNKNOWN)
    return found + bool(group.get("amsgrad"))


def _least_memory(device: torch.device) -> int:
    """Return the memory of the smallest GPU: ranks that chose different strategies would deadlock."""
    memory = _device_memory(device)
    ranks = find_communicator()
    return min(ranks.all_gather(memory)) if ranks else memory


def _device_memory(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).total_memory)


def _size(value: torch.Tensor) -> int:
    return int(value.numel() * value.element_size())


def _short(count: float) -> str:
    for unit, scale in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count:.0f}"
