"""What shapes an optimizer step: learning rate, precision, fused kernels and weight averaging."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from allranks.errors import UsageError
from allranks.train.strategies.named_state_dicts import user_name


def scale_factor(how: str, global_batch: int, base: int) -> float:
    """Return the factor of the learning rate when the batch grows from ``base``."""
    growth = global_batch / base
    return {"none": 1.0, "linear": growth, "sqrt": math.sqrt(growth)}[how]


def scale_rates(optimizers: Sequence[Any], scheduler: Any, factor: float) -> None:
    """Multiply the rates once, also those that a scheduler has already taken as its base.

    The factor is stored on the optimizer, so that a second fit does not scale again.
    """
    for optimizer in optimizers:
        ratio = factor / getattr(optimizer, "_allranks_lr_factor", 1.0)
        optimizer._allranks_lr_factor = factor
        if ratio == 1.0:
            continue
        for group in optimizer.param_groups:
            group["lr"] *= ratio
            if "initial_lr" in group:
                group["initial_lr"] *= ratio
        for each in nested_schedulers(scheduler):
            if getattr(each, "optimizer", None) is optimizer and hasattr(each, "base_lrs"):
                each.base_lrs = [rate * ratio for rate in each.base_lrs]


def lr_factor(optimizers: Sequence[Any]) -> float:
    """Return the factor that `scale_rates` applied."""
    factors = [float(each._allranks_lr_factor) for each in optimizers]
    return factors[0] if factors else 1.0


def rescale_rates(optimizers: Sequence[Any], scheduler: Any, before: float) -> None:
    """Scale rates that a checkpoint holds, with its factor ``before``, to the current batch."""
    for optimizer in optimizers:
        now = optimizer._allranks_lr_factor
        optimizer._allranks_lr_factor = before
        scale_rates([optimizer], scheduler, now)


def nested_schedulers(scheduler: Any) -> list[Any]:
    """Return a scheduler and those inside it (SequentialLR, ChainedScheduler)."""
    if scheduler is None:
        return []
    if isinstance(scheduler, (list, tuple)):
        return [inner for each in scheduler for inner in nested_schedulers(each)]
    inside = getattr(scheduler, "_schedulers", [])
    return [scheduler, *(inner for each in inside for inner in nested_schedulers(each))]


def scheduler_list(scheduler: Any) -> list[Any]:
    """Return the schedulers to step: the one given, or each of a list."""
    if scheduler is None:
        return []
    return list(scheduler) if isinstance(scheduler, (list, tuple)) else [scheduler]


class Warmup:
    """Raises the rate linearly over the first steps, whatever else moves it.

    The rate is changed around the optimizer's step and put back, because many schedulers compute
    the next rate from the present one.
    """

    def __init__(self, optimizers: Sequence[Any], steps: int) -> None:
        self._optimizers = optimizers
        self.steps = steps

    def step_with_warmup(self, done: int, step: Callable[[], None]) -> None:
        """Make the optimizer step number ``done + 1`` with its fraction of the rate."""
        if done >= self.steps:
            step()
            return
        # Looked up every time: an optimizer that loads a checkpoint replaces its groups.
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        rates = [group["lr"] for group in groups]
        for group in groups:
            group["lr"] *= (done + 1) / (self.steps + 1)
        try:
            step()
        finally:
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate

    def factor(self, done: int) -> float:
        """Return the fraction of the rate for the next step."""
        return min(1.0, (done + 1) / (self.steps + 1)) if self.steps else 1.0


def step_epoch_schedulers(scheduler: Any, metrics: dict[str, float], monitor: str) -> None:
    """Step the schedulers at the end of an epoch; ReduceLROnPlateau gets the monitored metric."""
    for each in scheduler_list(scheduler):
        if type(each).__name__ != "ReduceLROnPlateau":
            each.step()
        elif monitor in metrics:
            each.step(metrics[monitor])
        else:
            raise UsageError(
                f"ReduceLROnPlateau needs the metric '{monitor}', which was not measured.\n"
                f"Measured: {', '.join(sorted(metrics)) or 'none'}. Set TrainConfig(monitor=…)."
            )


@dataclass(frozen=True)
class Precision:
    """How the step computes. ``autocast`` is (device type, dtype) or None; ``scaler`` fp16's."""

    name: str
    autocast: tuple[str, torch.dtype] | None = None
    scaler: Any = None


def make_precision(
    name: str, device: torch.device, *, owned: bool = False, scales: bool = True
) -> Precision:
    """Set the mode of the matrix units and return autocast type and gradient scaler.

    ``owned``: the strategy casts by itself (FSDP's mixed precision), so there is no autocast.
    ``scales``: fp16's losses are scaled here and not by the strategy.
    """
    if device.type == "cuda":
        # tf32 is asked for by name; bf16 and fp16 already accept less than fp32.
        torch.set_float32_matmul_precision("highest" if name == "fp32" else "high")
        torch.backends.cudnn.allow_tf32 = name != "fp32"
    if name in ("fp32", "tf32"):
        return Precision(name)
    if name == "bf16":
        if device.type == "cuda" and not torch.cuda.is_bf16_supported():
            raise UsageError(
                f"precision='bf16': {torch.cuda.get_device_name(device)} has no bf16 arithmetic.\n"
                "Use precision='fp16' (with loss scaling) or 'tf32'."
            )
        return Precision(name, None if owned else (device.type, torch.bfloat16))
    if device.type != "cuda":
        raise UsageError(
            "precision='fp16' needs a GPU: on the CPU it is slower and less exact.\n"
            "Use precision='bf16' or 'fp32'."
        )
    scaler = torch.amp.GradScaler(device.type) if scales else None
    return Precision(name, None if owned else (device.type, torch.float16), scaler)


def use_fused_kernel(optimizer: torch.optim.Optimizer, device: torch.device) -> bool:
    """Switch to the fused kernel where this optimizer has one and the user chose nothing else.

    The arithmetic is the same; the kernel reads and writes every tensor once.
    """
    kinds = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)
    if type(optimizer) not in kinds or device.type not in ("cuda", "cpu") or optimizer.state:
        return False
    if type(optimizer) is torch.optim.Adagrad and device.type != "cpu":
        return False
    groups = optimizer.param_groups
    chosen = ("foreach", "fused", "capturable", "differentiable")
    if any(group.get(name) for group in groups for name in chosen):
        return False
    if any(group.get("fused") is False or group.get("foreach") is False for group in groups):
        return False
    if any(
        not p.is_floating_point() or p.is_sparse or type(p.data) is not torch.Tensor
        for group in groups
        for p in group["params"]
    ):
        return False
    for group in groups:
        group["fused"] = True
    optimizer.defaults["fused"] = True
    optimizer._step_supports_amp_scaling = device.type == "cuda"
    return True


class WeightAverage:
    """An exponential moving average of the trainable parameters; sharded ones shard by shard."""

    def __init__(
        self, model: nn.Module, decay: float, end_forward: Callable[[], None] = lambda: None
    ) -> None:
        """``end_forward`` frees what forward passes gathered, before weights are changed."""
        self.decay = decay
        self.is_applied = False
        """Whether the model currently computes with the average."""
        self._end_forward = end_forward
        end_forward()
        named = [(user_name(n), p) for n, p in model.named_parameters() if p.requires_grad]
        self._parameters = dict(named)
        self._live = [_local(p) for p in self._parameters.values()]
        self._kept = [tensor.detach().clone() for tensor in self._live]

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the current weights, in one fused operation."""
        torch._foreach_lerp_(self._kept, self._live, 1 - self.decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Let the model compute with the average inside this block."""
        self._end_forward()
        with torch.no_grad():
            present = [tensor.clone() for tensor in self._live]
            torch._foreach_copy_(self._live, self._kept)
        self.is_applied = True
        try:
            yield
        finally:
            self.is_applied = False
            self._end_forward()
            with torch.no_grad():
                torch._foreach_copy_(self._live, present)

    def tensors(self, like_parameter: Callable[[Any, torch.Tensor], Any]) -> dict[str, Any]:
        """Return the averages by the user's names, each in the form of its parameter (`Strategy.beside`)."""
        pairs = zip(self._parameters.items(), self._kept, strict=True)
        return {name: like_parameter(parameter, kept) for (name, parameter), kept in pairs}

    @torch.no_grad()
    def restart(self) -> None:
        """Take the current weights as the average."""
        torch._foreach_copy_(self._kept, self._live)


def _local(parameter: Any) -> torch.Tensor:
    """Return the tensor with this rank's numbers: a DTensor's own shard, or the parameter itself."""
    data = parameter.detach()
    local: torch.Tensor = data.to_local() if hasattr(data, "to_local") else data
    return local
