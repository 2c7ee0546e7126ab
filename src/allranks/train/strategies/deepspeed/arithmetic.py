"""The number types that DeepSpeed computes in, and a forward pass in the short ones."""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn

from allranks.errors import UsageError

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


def check_types(target: nn.Module) -> None:
    """An error for parameters of a type that DeepSpeed does not train."""
    for name, value in target.named_parameters():
        if value.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            raise UsageError(
                f"Parameter '{name}' is {value.dtype}: DeepSpeed trains in fp32, bf16 and fp16. "
                "Leave TrainConfig(dtype=…) out, or use strategy='ddp'."
            )


def compute_in(model: Any, dtype: torch.dtype, device_type: str) -> None:
    """Under autocast, which joins short weights with fp32 inputs; fp32 comes out."""
    inner = model.forward

    @wraps(inner)
    def forward(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device_type, dtype):
            return _widened(inner(*args, **kwargs))

    model.forward = forward


def _widened(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.float() if value.dtype in HALF.values() else value
    if isinstance(value, dict):
        return type(value)({key: _widened(each) for key, each in value.items()})
    if type(value) in (tuple, list):
        return type(value)(_widened(each) for each in value)
    return value
