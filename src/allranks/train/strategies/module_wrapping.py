"""Prepare a model's modules: find its blocks, checkpoint activations, synchronize batch norms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from allranks.errors import UsageError

_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)


def blocks(model: nn.Module, classes: Sequence[str | type] | None = None) -> list[nn.Module]:
    """Return the outermost modules of the given classes, or the repeated ones: a transformer's layers.

    Those are modules of one class in a list or a sequence or, without any, siblings of one class.
    """
    if classes is not None:
        return _of_classes(model, classes)
    return _repeated(model, _CONTAINERS) or _repeated(model, (nn.Module,))


def unwrap(module: nn.Module) -> nn.Module:
    """Return the module inside an activation checkpoint."""
    inner: nn.Module = getattr(module, "_checkpoint_wrapped_module", module)
    return inner


def outer_blocks(model: nn.Module, chosen: Sequence[nn.Module]) -> list[nn.Module]:
    """Return the blocks that can be sharded separately: those that share no parameter with others."""
    holders: Counter[int] = Counter()
    for part in model.modules():
        holders.update(id(value) for value in part.parameters(recurse=False))
    alone = []
    for block in chosen:
        own: Counter[int] = Counter()
        for part in block.modules():
            own.update(id(value) for value in part.parameters(recurse=False))
        if own and all(holders[key] == count for key, count in own.items()):
            alone.append(block)
    return alone


def checkpoint_activations(model: nn.Module, asked: bool | Sequence[str]) -> None:
    """Recompute the activations of the repeated blocks (or the given classes) in the backward pass."""
    if not asked:
        return
    chosen = blocks(model, None if asked is True else asked)
    if not chosen:
        raise UsageError(
            "activation_checkpointing=True: this model has no repeated blocks. "
            "Give their classes, for example activation_checkpointing=['Block']."
        )
    wrapped = {id(block): _wrap_checkpoint(block) for block in chosen}
    for parent in [*model.modules()]:
        for name, child in [*parent.named_children()]:
            if id(child) in wrapped and unwrap(parent) is parent:
                setattr(parent, name, wrapped[id(child)])


def synchronize_batchnorm(model: nn.Module, device: torch.device, size: int) -> None:
    """Compute batch norms over the batches of all ranks. The parameters stay the same objects."""
    if size == 1 or not any(isinstance(module, _BatchNorm) for module in model.modules()):
        return
    if device.type == "cpu":
        raise UsageError(
            "sync_batchnorm=True: PyTorch synchronizes batch norms on GPUs only, but this training "
            "runs on CPUs. Leave it out here, or use compute_setup='gpu'."
        )
    if isinstance(model, _BatchNorm):
        raise UsageError(
            "sync_batchnorm=True: the model itself is a batch norm. Put it into a module."
        )
    nn.SyncBatchNorm.convert_sync_batchnorm(model)


def move_state(optimizers: Sequence[Optimizer]) -> None:
    """Move the existing state of optimizers to the devices of their parameters."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            counts_on_cpu = not (group.get("fused") or group.get("capturable"))
            for parameter in group["params"]:
                state = optimizer.state.get(parameter, {})
                for key, value in state.items():
                    if isinstance(value, Tensor) and not (key == "step" and counts_on_cpu):
                        state[key] = value.to(parameter.device)


def state_tensors(optimizers: Sequence[Optimizer]) -> Iterator[Tensor]:
    """Yield the existing state tensors of optimizers, without counters, in a fixed order."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                for value in optimizer.state.get(parameter, {}).values():
                    if isinstance(value, Tensor) and value.dim():
                        yield value


def _of_classes(model: nn.Module, classes: Sequence[str | type]) -> list[nn.Module]:
    def named(module: nn.Module) -> bool:
        kinds = type(unwrap(module)).__mro__
        return any(
            entry in kinds or entry in [kind.__name__ for kind in kinds] for entry in classes
        )

    found = [*_outermost(model, named)]
    if not found:
        there = sorted({type(module).__name__ for module in model.modules()})
        asked = ", ".join(entry if isinstance(entry, str) else entry.__name__ for entry in classes)
        raise UsageError(f"The model has no {asked}. Its classes are {', '.join(there)}.")
    return found


def _repeated(model: nn.Module, parents: tuple[type, ...]) -> list[nn.Module]:
    """Return the children of such parents that have a sibling of the same class."""
    repeated: set[int] = set()
    for parent in model.modules():
        children = [child for child in parent.children() if _may_be_block(child)]
        often = Counter(type(unwrap(child)) for child in children)
        if isinstance(parent, parents):
            repeated |= {id(child) for child in children if often[type(unwrap(child))] > 1}
    return [*_outermost(model, lambda module: id(module) in repeated)]


def _may_be_block(module: nn.Module) -> bool:
    return not isinstance(module, _CONTAINERS) and any(True for _ in module.parameters())


def _outermost(model: nn.Module, wanted: Callable[[nn.Module], bool]) -> Iterator[nn.Module]:
    seen: set[int] = set()
    todo = [*model.children()]
    while todo:
        module = todo.pop(0)
        if id(module) in seen:
            continue
        seen.add(id(module))
        if wanted(module):
            yield module
        else:
            todo = [*module.children(), *todo]


def _wrap_checkpoint(block: nn.Module) -> nn.Module:
    norms = [module for module in block.modules() if isinstance(module, _BatchNorm)]
    extra: dict[str, Any] = {"context_fn": partial(_contexts, norms)} if norms else {}
    # Imported on use: it loads much of torch.distributed.
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
        CheckpointImpl,
        checkpoint_wrapper,
    )

    return checkpoint_wrapper(block, CheckpointImpl.NO_REENTRANT, **extra)


def _contexts(
    norms: Sequence[nn.Module],
) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    return nullcontext(), _keep_statistics(norms)


@contextmanager
def _keep_statistics(norms: Sequence[nn.Module]) -> Iterator[None]:
    """Restore the running statistics after the second forward pass, so that a batch counts once."""
    kept = [(norm, dict(norm._buffers)) for norm in norms]
    for norm, statistics in kept:
        norm._buffers.update({k: v if v is None else v.clone() for k, v in statistics.items()})
    try:
        yield
    finally:
        for norm, statistics in kept:
            norm._buffers.update(statistics)


def check_initialized(model: nn.Module) -> None:
    """Raise UsageError for parameters without values: lazy ones or on the meta device."""
    for name, value in model.named_parameters():
        if isinstance(value, nn.parameter.UninitializedParameter):
            raise UsageError(f"Parameter '{name}' is lazy: run one batch through the model first.")
        if value.is_meta:
            raise UsageError(
                f"Parameter '{name}' is on the meta device: initialize the model first."
            )
