"""From a batch to a loss: one module, which the strategy wraps and torch.compile compiles as a whole.

loss_fn="mse"                       a name
loss_fn=nn.CrossEntropyLoss()       a criterion: (output, target) -> loss
loss_fn=f                           a function with a parameter called ``model``: f(model, batch)
                                    or f(batch, model) -> loss, or (loss, {"name": value})
loss_fn=None                        the model returns its loss: out.loss or out["loss"]
training_step=f                     the same as a function with ``model``

Whatever the user does with the model happens inside this module's forward, so DDP never misses it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from allranks.errors import UsageError, did_you_mean

Compute = Callable[[nn.Module, Any], tuple[torch.Tensor, Mapping[str, Any]]]
Metric = Callable[[Any, Any], Any]

LOSSES: dict[str, Callable[..., torch.Tensor]] = {
    "mse": functional.mse_loss,
    "l1": functional.l1_loss,
    "huber": functional.huber_loss,
    "smooth_l1": functional.smooth_l1_loss,
    "cross_entropy": functional.cross_entropy,
    "nll": functional.nll_loss,
    "bce": functional.binary_cross_entropy,
    "bce_with_logits": functional.binary_cross_entropy_with_logits,
}
_NOTHING: Mapping[str, Any] = {}


class Objective(nn.Module):
    """Holds the model and turns a batch into ``(loss, metrics)``."""

    def __init__(
        self,
        model: nn.Module,
        compute: Compute,
        autocast: tuple[str, torch.dtype] | None = None,
        criterion: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.criterion = criterion  # registered, so that it moves to the device and is synchronized
        self.compute = compute
        self.autocast = autocast

    def forward(self, batch: Any) -> tuple[torch.Tensor, Mapping[str, Any]]:
        if self.autocast is None:
            return self.compute(self.model, batch)
        kind, dtype = self.autocast
        with torch.autocast(kind, dtype):
            return self.compute(self.model, batch)


def direct_call(objective: nn.Module) -> Callable[[Any], tuple[torch.Tensor, Mapping[str, Any]]]:
    """Return the objective without the overhead of a module call, if no hook or wrapper is used."""
    plain = type(objective) is Objective and objective._compiled_call_impl is None
    hooks = (objective._forward_hooks, objective._forward_pre_hooks, objective._backward_hooks)
    if plain and objective.autocast is None and not any(hooks):
        return partial(objective.compute, objective.model)
    call: Callable[[Any], tuple[torch.Tensor, Mapping[str, Any]]] = objective
    return call


def make_compute(
    loss_fn: str | Callable[..., Any] | None,
    training_step: Callable[..., Any] | None = None,
    metrics: Mapping[str, Metric] | None = None,
) -> Compute:
    """Return the function that the objective runs."""
    if training_step is not None:
        return _own(training_step, "training_step")
    if loss_fn is None:
        return _loss_of_model
    if isinstance(loss_fn, str):
        return _supervised(_named(loss_fn), metrics or {})
    if not callable(loss_fn):
        raise UsageError(f"loss_fn={loss_fn!r}: give a name, a function or None.")
    if not isinstance(loss_fn, nn.Module) and "model" in _parameters(loss_fn):
        if metrics:
            raise UsageError(
                "metrics={…} need the model's output, which this loss_fn does not return.\n"
                "Return them beside the loss: (loss, {'name': value})."
            )
        return _own(loss_fn, "loss_fn")
    return _supervised(loss_fn, metrics or {})


def drives_optimizers(training_step: Callable[..., Any] | None) -> bool:
    """Whether the user's training_step makes the optimizer steps itself: it has a parameter ``step``."""
    return training_step is not None and "step" in _parameters(training_step)


def split_batch(batch: Any) -> tuple[tuple[Any, ...], Any]:
    """Return inputs and target of a tuple batch: the last element is the target."""
    if isinstance(batch, (tuple, list)) and len(batch) >= 2:
        return tuple(batch[:-1]), batch[-1]
    shape = f"a {type(batch).__name__}" + (
        f" of {len(batch)}" if isinstance(batch, (tuple, list)) else ""
    )
    raise UsageError(
        f"The batch is {shape}, but this loss_fn needs (inputs, target).\n"
        "Give your own function: loss_fn=lambda model, batch: …"
    )


def call_model(model: nn.Module, batch: Any) -> Any:
    """Return the model's output for a batch, without its target: for `predict`."""
    if isinstance(batch, Mapping):
        return model(**batch)
    if isinstance(batch, (tuple, list)):
        return model(*(batch[:-1] if len(batch) > 1 else batch))
    return model(batch)


def _supervised(criterion: Callable[..., Any], metrics: Mapping[str, Metric]) -> Compute:
    def compute(model: nn.Module, batch: Any) -> tuple[torch.Tensor, Mapping[str, Any]]:
        if type(batch) in (tuple, list) and len(batch) == 2:  # nearly always
            inputs, target = batch
            output = model(inputs)
        else:
            several, target = split_batch(batch)
            output = model(*several)
        loss = criterion(output, target)
        if not metrics:
            return loss, _NOTHING
        with torch.no_grad():
            return loss, {name: metric(output, target) for name, metric in metrics.items()}

    return compute


def explain_type_error(error: TypeError, loss_fn: Any) -> Exception:
    """Explain how a loss function gets the model, if that is why it failed."""
    if not isinstance(loss_fn, FunctionType) or "'Tensor' object is not callable" not in str(error):
        return error
    return UsageError(
        f"loss_fn was called with (output, target), and failed: {error}.\n"
        "To get the model, give the function a parameter called `model`: "
        "def loss(model, batch)."
    )


def _loss_of_model(model: nn.Module, batch: Any) -> tuple[torch.Tensor, Mapping[str, Any]]:
    output = (
        model(**batch)
        if isinstance(batch, Mapping)
        else model(*batch)
        if isinstance(batch, (tuple, list))
        else model(batch)
    )
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if loss is None and isinstance(output, torch.Tensor) and output.ndim == 0:
        loss = output
    if loss is None:
        raise UsageError(
            f"loss_fn=None means that the model returns its loss, but it returned a "
            f"{type(output).__name__} without one.\nGive loss_fn, or return out.loss."
        )
    return loss, _NOTHING


def _own(function: Callable[..., Any], what: str) -> Compute:
    names = _parameters(function)
    model_first = "model" not in names or names.index("model") == 0

    def compute(model: nn.Module, batch: Any) -> tuple[torch.Tensor, Mapping[str, Any]]:
        return loss_and_metrics(
            function(model, batch) if model_first else function(batch, model), what
        )

    return compute


def loss_and_metrics(result: Any, what: str) -> tuple[torch.Tensor, Mapping[str, Any]]:
    """Read what a user's function returns: a loss, (loss, metrics), or a dict with "loss"."""
    if isinstance(result, torch.Tensor):
        return result, _NOTHING
    if isinstance(result, tuple) and len(result) == 2:
        return result[0], result[1] or _NOTHING
    if isinstance(result, Mapping) and "loss" in result:
        return result["loss"], {k: v for k, v in result.items() if k != "loss"}
    raise UsageError(
        f"{what} returned a {type(result).__name__}: return the loss, (loss, {{'name': value}}) or "
        "{'loss': …}."
    )


def _named(name: str) -> Callable[..., torch.Tensor]:
    if name in LOSSES:
        return LOSSES[name]
    hint = did_you_mean(name, LOSSES)
    raise UsageError(f"loss_fn='{name}' is unknown. Choose from {', '.join(LOSSES)}.{hint}")


def _parameters(function: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # a builtin without a signature
        return []
