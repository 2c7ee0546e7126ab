"""What rank 0 prints at the start: what was chosen, and why; and the line of each epoch."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Mapping

import torch

from allranks.train.context import TrainContext
from allranks.train.monitoring.model_summary import summarize
from allranks.train.monitoring.progress_line import format_seconds


def banner(context: TrainContext, resumed: bool) -> Iterator[str]:
    """Yield the lines, for rank 0."""
    config = context.config
    if config.summary:
        yield summarize(context.task.model)
    if not config.verbose:
        return
    for label, text in _facts(context, resumed):
        yield wrap_labelled(label, text)
    # Not wrapped, so that it can be copied.
    yield f"folder    {context.folder}"


def wrap_labelled(label: str, text: str) -> str:
    """Return a labelled line, wrapped to the terminal's width."""
    width = max(40, shutil.get_terminal_size((100, 24)).columns)
    return textwrap.fill(
        text, width, initial_indent=f"{label:<10}", subsequent_indent=" " * 10,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def _facts(context: TrainContext, resumed: bool) -> Iterator[tuple[str, str]]:
    here, strategy = context.engine.session.world, context.engine.strategy
    yield "ranks", _where(context)
    if here.size > 1:
        yield "started", here.reason
    yield "strategy", f"{strategy.describe()} ({context.engine.reason})"
    yield "batch", _batch(context)
    yield "precision", _precision(context)
    for note in context.loader.notes:
        yield "data", note
    for warning in context.loader.warnings:
        yield "WARNING", warning
    if resumed:
        yield "resumed", f"at epoch {context.state.epoch}, step {context.state.step}"


def _where(context: TrainContext) -> str:
    session = context.engine.session
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


def _batch(context: TrainContext) -> str:
    config, loader, size = context.config, context.loader, context.engine.session.world.size
    if loader.global_batch is None:
        text = f"given by the data × {size} ranks"
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
    rates = [group["lr"] for o in context.step_context.optimizers for group in o.param_groups]
    moves = ", changed by the scheduler" if context.step_context.scheduler is not None else ""
    rate = f", learning rate {rates[0]:g}{moves}" if rates else ""
    if config.lr_scaling != "none":
        rate += f" ({config.lr_scaling} scaling)"
    if config.warmup_steps:
        rate += f" after {config.warmup_steps} steps of warm-up"
    steps = context.state.total_steps
    length = f", {steps:,} steps" if steps is not None else ""
    return f"{text}{rate}{length}"


def _precision(context: TrainContext) -> str:
    precision, device = context.engine.precision, context.engine.session.device
    dtype = context.engine.config.dtype
    text = precision.name if dtype is None else str(dtype).removeprefix("torch.")
    if precision.name == "fp32" and device.type == "cuda" and torch.cuda.is_bf16_supported():
        text += " (precision='bf16' is several times faster on this GPU)"
    if context.engine.fused:
        text += f", fused {', '.join(sorted(set(context.engine.fused)))}"
    return text


def epoch_line(epoch: int, last: int | None, metrics: Mapping[str, float], seconds: float) -> str:
    """Return ``epoch 3/10  loss 0.76 (val 0.78)  1s``: each metric once, its validation value beside it."""
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
