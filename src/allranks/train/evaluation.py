"""Validation, test and prediction: no gradients, exact means over all ranks' samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from allranks.errors import UsageError
from allranks.train.data import DistributedLoader
from allranks.train.data.batch_transfer import count_samples
from allranks.train.engine import Engine
from allranks.train.meter import Meter
from allranks.train.objective import Compute, call_model


@contextmanager
def evaluating(engine: Engine) -> Iterator[None]:
    """Evaluation mode, and rank 0's buffers everywhere; the modes are put back after it."""
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


def evaluate(
    engine: Engine,
    loader: DistributedLoader,
    compute: Compute | None = None,
    *,
    most: int | None = None,
) -> dict[str, float]:
    """Loss and metrics over all samples, each counted once; of ``most`` batches at most."""
    meter = Meter(engine.session.device, engine.session.world.size)
    with evaluating(engine):
        for number, (data, batch_weight) in enumerate(loader.epoch(0)):
            if most is not None and number >= most:
                break
            loss, metrics = _computed(engine, compute, data)
            meter.add(
                loss, metrics, count_samples(data) if batch_weight is None else batch_weight.count
            )
        return meter.flush().means()


def _computed(engine: Engine, compute: Compute | None, data: Any) -> Any:
    if compute is None:
        # Past the compiled call, which was compiled for training, but with FSDP's hooks.
        return engine.objective._call_impl(data)
    autocast = engine.precision.autocast
    if autocast is None:
        return compute(engine.model, data)
    with torch.autocast(*autocast):
        return compute(engine.model, data)


def predict(
    engine: Engine,
    loader: DistributedLoader,
    predict_step: Callable[[nn.Module, Any], Any] | None = None,
) -> Any:
    """The model's outputs for every sample in the dataset's order, on the CPU, on every rank."""
    step = predict_step or call_model
    parts: list[Any] = []
    with evaluating(engine):
        for data, batch_weight in loader.epoch(0):
            output = _computed(engine, lambda model, batch: step(model, batch), data)
            count = count_samples(data) if batch_weight is None else batch_weight.count
            parts.append(_first(_to_cpu(output), count))
    if engine.session.world.size > 1:
        parts = _in_order(parts, engine.session.world.size)
    return _joined(parts)


def _in_order(parts: list[Any], size: int) -> list[Any]:
    """Each global batch is the ranks' parts one after the other."""
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
        "of them.\nGive predict_step=lambda model, batch: … to the Trainer."
    )


def _first(output: Any, count: int) -> Any:
    """The samples that count: a filler has none."""
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
