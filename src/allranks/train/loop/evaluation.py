"""Validation, test and prediction: no gradients, exact means over all ranks' samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from allranks.errors import UsageError
from allranks.train.context import TrainContext
from allranks.train.data import DistributedLoader
from allranks.train.data.batch_transfer import count_samples
from allranks.train.model_setup import TrainEngine
from allranks.train.step.loss_module import Compute, call_model, make_compute
from allranks.train.step.metric_accumulator import MetricAccumulator


@contextmanager
def evaluating(engine: TrainEngine) -> Iterator[None]:
    """Switch to evaluation mode with rank 0's buffers on all ranks, and back to each module's mode."""
    modes = [(module, module.training) for module in engine.model.modules()]
    engine.strategy.sync_buffers()
    engine.model.eval()
    failed = True
    try:
        with torch.no_grad():
            yield
        failed = False
    finally:
        engine.strategy.end_forward(failed=failed)
        for module, training in modes:
            module.training = training


def evaluate(context: TrainContext, loader: DistributedLoader, kind: str) -> dict[str, float]:
    """Return loss and metrics over all samples, each counted once, as ``<kind>_<name>``."""
    engine, own, most = context.engine, context.task.validation_step, context.config.max_val_batches
    if own is None and context.task.manual_step is not None:
        raise UsageError(
            "training_step(model, batch, step) cannot be used to validate: "
            "define validation_step(model, batch) -> loss or (loss, metrics), too."
        )
    compute = None if own is None else make_compute(None, own)
    accumulator = MetricAccumulator(context.device, context.world.size)
    with evaluating(engine):
        for number, (data, batch_weight) in enumerate(loader.epoch(0)):
            if most is not None and number >= most:
                break
            loss, metrics = _compute(engine, compute, data)
            accumulator.add(
                loss, metrics, count_samples(data) if batch_weight is None else batch_weight.count
            )
        means = accumulator.flush().means()
    return {f"{kind}_{name}": value for name, value in means.items()}


def _compute(engine: TrainEngine, compute: Compute | None, data: Any) -> Any:
    if compute is None:
        # Past the compiled call, which was compiled for training, but with FSDP's hooks.
        return engine.objective._call_impl(data)
    autocast = engine.precision.autocast
    if autocast is None:
        return compute(engine.model, data)
    with torch.autocast(*autocast):
        return compute(engine.model, data)


def predict(
    engine: TrainEngine,
    loader: DistributedLoader,
    predict_step: Callable[[nn.Module, Any], Any] | None = None,
) -> Any:
    """Return the outputs for every sample in the dataset's order, on the CPU of every rank."""
    step = predict_step or call_model
    parts: list[Any] = []
    with evaluating(engine):
        for data, batch_weight in loader.epoch(0):
            output = _compute(engine, lambda model, batch: step(model, batch), data)
            count = count_samples(data) if batch_weight is None else batch_weight.count
            parts.append(_first(_to_cpu(output), count))
    if engine.session.world.size > 1:
        parts = _in_order(parts, engine.session.world.size)
    return _joined(parts)


def _in_order(parts: list[Any], size: int) -> list[Any]:
    """Gather the outputs: each global batch is the ranks' parts one after the other."""
    gathered: list[list[Any]] = [[] for _ in range(size)]
    dist.all_gather_object(gathered, parts)
    longest = max(len(own) for own in gathered)
    return [own[i] for i in range(longest) for own in gathered if i < len(own)]


def _to_cpu(output: Any) -> Any:
    if isinstance(output, torch.Tensor):
        return output.detach().cpu()
    if isinstance(output, dict):
        return {key: _to_cpu(value) for key, value in output.items()}
    if isinstance(output, (tuple, list)):
        return type(output)([_to_cpu(value) for value in output])
    raise UsageError(
        f"The model returned a {type(output).__name__}: predict() joins tensors, tuples and dicts "
        "of them.\nDefine predict_step(model, batch) in a subclass of Trainer."
    )


def _first(output: Any, count: int) -> Any:
    """Return the samples that count: a repeated filler sample does not."""
    if isinstance(output, torch.Tensor):
        return output[:count]
    if isinstance(output, dict):
        return {key: _first(value, count) for key, value in output.items()}
    return type(output)([_first(value, count) for value in output])


def _joined(parts: list[Any]) -> Any:
    if not parts:
        return torch.empty(0)
    head = parts[0]
    if isinstance(head, torch.Tensor):
        return torch.cat(parts)
    if isinstance(head, dict):
        return {key: _joined([part[key] for part in parts]) for key in head}
    return type(head)([_joined([part[i] for part in parts]) for i in range(len(head))])
