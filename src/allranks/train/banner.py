"""What is said at the start: what was chosen, and why."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch

from allranks.train.progress_line import format_seconds
from allranks.train.summary import summarize

if TYPE_CHECKING:
    from allranks.train.loop import Fit
    from allranks.train.trainer import Trainer


def banner(trainer: Trainer, fit: Fit, resumed: bool) -> Iterator[str]:
    """The lines, for rank 0."""
    config = trainer.config
    if config.summary:
        yield summarize(trainer.model)
    if not config.verbose:
        return
    for label, text in _facts(trainer, fit, resumed):
        yield folded(label, text)
    # Not folded, so that it can be copied.
    yield f"folder    {trainer.folder}"


def folded(label: str, text: str) -> str:
    """A labelled line, continued under itself where the terminal ends."""
    width = max(40, shutil.get_terminal_size((100, 24)).columns)
    return textwrap.fill(
        text, width, initial_indent=f"{label:<10}", subsequent_indent=" " * 10,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def _facts(trainer: Trainer, fit: Fit, resumed: bool) -> Iterator[tuple[str, str]]:
    here, strategy = fit.engine.session.world, fit.engine.strategy
    yield "ranks", _where(fit)
    if here.size > 1:
        yield "started", here.reason
    yield "strategy", f"{strategy.describe()} ({fit.engine.reason})"
    yield "batch", _batch(trainer, fit)
    yield "precision", _precision(fit)
    for note in fit.loader.notes:
        yield "data", note
    for warning in fit.loader.warnings:
        yield "WARNING", warning
    if resumed:
        yield "resumed", f"at epoch {fit.state.epoch}, step {fit.state.step}"


def _where(fit: Fit) -> str:
    session = fit.engine.session
    here = session.world
    device = str(session.device)
    if session.device.type == "cuda":
        device = f"{torch.cuda.get_device_name(session.device)}"
    many = (
        "1 process"
        if here.size == 1
        else f"{here.size} ranks on {here.nodes} node" + ("s" if here.nodes > 1 else "")
    )
    by = f" over {session.backend}" if session.backend and here.size > 1 else ""
    return f"{many}{by}, {device}"


def _batch(trainer: Trainer, fit: Fit) -> str:
    config, loader, size = trainer.config, fit.loader, fit.engine.session.world.size
    if loader.global_batch is None:
        text = f"as the data gives it × {size} ranks"
    else:
        text = (
            f"{loader.global_batch} ({loader.batch_size} per rank × {size})"
            if size > 1
            else (f"{loader.global_batch}")
        )
    if config.accumulate > 1:
        text += f" × {config.accumulate} accumulated"
        if loader.global_batch is not None:
            text += f" = {loader.global_batch * config.accumulate} per step"
    rates = [group["lr"] for o in fit.parts.optimizers for group in o.param_groups]
    moves = ", moved by the scheduler" if fit.parts.scheduler is not None else ""
    rate = f", learning rate {rates[0]:g}{moves}" if rates else ""
    if config.lr_scaling != "none":
        rate += f" ({config.lr_scaling} scaling)"
    if config.warmup_steps:
        rate += f" after {config.warmup_steps} steps of warm-up"
    steps = fit.state.total_steps
    length = f", {steps:,} steps" if steps is not None else ""
    return f"{text}{rate}{length}"


def _precision(fit: Fit) -> str:
    precision, device = fit.engine.precision, fit.engine.session.device
    dtype = fit.engine.config.dtype
    text = precision.name if dtype is None else str(dtype).removeprefix("torch.")
    if precision.name == "fp32" and device.type == "cuda" and torch.cuda.is_bf16_supported():
        text += " (precision='bf16' is several times faster on this GPU)"
    if fit.engine.fused:
        text += f", fused {', '.join(sorted(set(fit.engine.fused)))}"
    return text


def epoch_line(epoch: int, last: int | None, metrics: Mapping[str, float], seconds: float) -> str:
    """``epoch 3/10  loss 0.76 (val 0.78)  1s``: each metric once, what was validated beside it."""
    shown = [f"epoch {epoch}/{last}" if last else f"epoch {epoch}"]
    named = [name.removeprefix("train_") for name in metrics if name.startswith("train_")]
    for name in named:
        val = metrics.get(f"val_{name}")
        beside = f" (val {val:.4g})" if val is not None else ""
        shown.append(f"{name} {metrics[f'train_{name}']:.4g}{beside}")
    for name in metrics:
        if name.startswith("val_") and name.removeprefix("val_") not in named:
            shown.append(f"{name} {metrics[name]:.4g}")
    return "  ".join([*shown, format_seconds(seconds)])
