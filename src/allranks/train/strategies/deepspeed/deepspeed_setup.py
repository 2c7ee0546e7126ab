"""Import DeepSpeed, check that its compiler is available, and compute in the types that it trains."""

from __future__ import annotations

import importlib
import logging
import os
import shutil
import sys
import warnings
from collections.abc import Mapping
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from allranks.errors import MissingDependencyError, UsageError

_COMPILED = {
    "adam": "fused_adam",
    "adamw": "fused_adam",
    "lamb": "fused_lamb",
    "lion": "fused_lion",
}
_ON_CPU = {"adam": "cpu_adam", "adamw": "cpu_adam", "adagrad": "cpu_adagrad", "lion": "cpu_lion"}
_KNOWN_WARNINGS = ("using ZeRO with an untested optimizer", "before it has started")
"""Warnings about what was checked here: only element-wise optimizers are accepted."""
HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


def load_deepspeed(device_type: str) -> Any:
    """Import deepspeed for that kind of device."""
    if device_type == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    try:
        deepspeed = importlib.import_module("deepspeed")
    except ImportError as error:
        if error.name not in ("deepspeed", None):
            raise MissingDependencyError(f"deepspeed cannot be imported: {error}.") from None
        raise MissingDependencyError(
            "The deepspeed strategy needs the 'deepspeed' package. "
            "Install it with: pip install 'allranks[deepspeed]'"
        ) from None
    kind = deepspeed.get_accelerator().device_name().partition(":")[0]
    if kind != device_type:
        raise UsageError(
            f"DeepSpeed was set to {kind} in this process (DS_ACCELERATOR="
            f"{os.environ.get('DS_ACCELERATOR', '')}), but this training runs on {device_type}.\n"
            f"Use compute_setup='{'gpu' if kind == 'cuda' else 'cpu'}', or unset DS_ACCELERATOR."
        )
    # It calls collectives by deprecated names, which a user cannot change.
    warnings.filterwarnings(
        "ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning, "torch"
    )
    logging.getLogger("DeepSpeed").addFilter(_is_relevant)
    # For inference only: building it takes minutes.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed


def _is_relevant(record: logging.LogRecord) -> bool:
    return not any(words in record.getMessage() for words in _KNOWN_WARNINGS)


def needed_ops(config: Mapping[str, Any]) -> dict[str, str]:
    """Return what DeepSpeed compiles for this configuration, and the reasons."""
    zero, optimizer = config.get("zero_optimization", {}), config.get("optimizer", {})
    devices = [
        (zero.get(name) or {}).get("device", "none")
        for name in ("offload_optimizer", "offload_param")
    ]
    ops = {}
    kind = str(optimizer.get("type", "")).lower()
    if not optimizer.get("params", {}).get("torch_adam"):
        op = (_COMPILED if devices[0] == "none" else _ON_CPU).get(kind)
        if op:
            ops[op] = f"the configuration's optimizer {optimizer['type']}"
    if "nvme" in devices:
        ops["async_io"] = "offloading to NVMe"
    return ops


def check_compiler(deepspeed: Any, ops: Mapping[str, str]) -> None:
    """Raise MissingDependencyError if something must be compiled but cannot be."""
    beside = Path(sys.executable).parent
    if shutil.which("ninja") is None and (beside / "ninja").exists():
        os.environ["PATH"] += f"{os.pathsep}{beside}"  # a venv that was not activated
    missing = [
        what for what in (os.environ.get("CXX", "g++"), "ninja") if shutil.which(what) is None
    ]
    for op, why in ops.items():
        if missing and not deepspeed.ops.__installed_ops__.get(op):
            raise MissingDependencyError(
                f"DeepSpeed compiles its {op} for {why}, but {' and '.join(missing)} is missing.\n"
                "Load a compiler (module load gcc), pip install ninja, or give the Trainer a torch optimizer."
            )
        if op == "async_io" and not deepspeed.ops.op_builder.AsyncIOBuilder().is_compatible(
            verbose=False
        ):
            raise MissingDependencyError(
                "Offloading to NVMe needs libaio with its header, which the compiler does not find.\n"
                "Install it (apt install libaio-dev, dnf install libaio-devel), or set its path: "
                "CFLAGS=-I/path/include LDFLAGS=-L/path/lib."
            )


def check_types(target: nn.Module) -> None:
    """Raise UsageError for parameters of a type that DeepSpeed does not train."""
    for name, value in target.named_parameters():
        if value.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            raise UsageError(
                f"Parameter '{name}' is {value.dtype}: DeepSpeed trains in fp32, bf16 and fp16. "
                "Leave out TrainConfig(dtype=…), or use strategy='ddp'."
            )


def compute_in(model: Any, dtype: torch.dtype, device_type: str) -> None:
    """Run the model under autocast, which combines 16-bit weights with fp32 inputs; return fp32."""
    inner = model.forward

    @wraps(inner)
    def forward(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device_type, dtype):
            return _to_fp32(inner(*args, **kwargs))

    model.forward = forward


def _to_fp32(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.float() if value.dtype in HALF.values() else value
    if isinstance(value, dict):
        return type(value)({key: _to_fp32(each) for key, each in value.items()})
    if type(value) in (tuple, list):
        return type(value)(_to_fp32(each) for each in value)
    return value
