"""How much work a sample is, and how much work a device could do: for tokens per second and MFU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from allranks.train.data.batch_transfer import leaves

if TYPE_CHECKING:
    from allranks.train.flops import Counting
    from allranks.train.loop import Fit
    from allranks.train.marks import Marks

_SHORT = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float64: "fp64"}


def positions(batch: Any) -> tuple[int, int]:
    """Positions, padding included, and samples of a batch of sequences; zeros where it is none.

    A dict's ``input_ids``, or a first tensor of integers with two dimensions.
    """
    if isinstance(batch, Mapping):
        first = batch.get("input_ids")
    else:
        first = next((leaf for leaf in leaves(batch) if isinstance(leaf, torch.Tensor)), None)
    if not isinstance(first, torch.Tensor) or first.ndim != 2:
        return 0, 0
    whole = not (first.is_floating_point() or first.is_complex() or first.dtype == torch.bool)
    return (first.numel(), len(first)) if whole else (0, 0)


def peak_of(fit: Fit) -> float:
    """Floating-point operations per second that this rank's device could make; 0 when unknown."""
    engine = fit.engine
    if engine.config.peak_flops is not None:
        return engine.config.peak_flops
    if engine.session.device.type != "cuda":
        return 0.0
    from allranks.runtime.telemetry.peak_flops import peak_flops

    name = torch.cuda.get_device_name(engine.session.device)
    return peak_flops(name, _arithmetic(fit)) or 0.0


def _arithmetic(fit: Fit) -> str:
    """What the products of the model are computed in."""
    chosen = str(fit.engine.strategy.options.precision)
    if chosen not in ("fp32", "tf32"):
        return chosen
    first = next((p for p in fit.engine.model.parameters() if p.is_floating_point()), None)
    if first is not None and first.dtype in _SHORT:
        return _SHORT[first.dtype]
    return "fp32" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def make_counting(fit: Fit, marks: Marks, peak: float) -> Counting | None:
    """Counts the operations of a sample, where that is asked for by nobody else, of use, and safe."""
    if fit.engine.config.flops_per_sample is not None or not peak:
        return None
    from allranks.train.flops import Counting, can_count

    return Counting(marks) if can_count(fit) else None
