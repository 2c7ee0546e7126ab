"""fp32, tf32, bf16, fp16: what each means for the forward pass, the gradients and the matrix units."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from allranks.errors import UsageError


@dataclass(frozen=True)
class Precision:
    """How the step computes. ``autocast`` is (device type, dtype) or None; ``scaler`` fp16's."""

    name: str
    autocast: tuple[str, torch.dtype] | None = None
    scaler: Any = None


def make_precision(
    name: str, device: torch.device, *, owned: bool = False, scales: bool = True
) -> Precision:
    """Set the matrix units' mode and give the autocast type and gradient scaler.

    ``owned``: the strategy casts by itself (FSDP's mixed precision), so autocast stays away.
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


def fuse(optimizer: torch.optim.Optimizer, device: torch.device) -> bool:
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
