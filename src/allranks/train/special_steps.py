"""Steps that somebody else drives.

closure    an optimizer that evaluates the loss several times per step (LBFGS)
manual     the user's training_step(model, batch, step) drives several optimizers
custom     the user's own optimize_step(model, optimizer, loss_fn, batch)
free       no gradients: an optimizer that asks and is told (nevergrad)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from allranks.train.data import BatchWeight
from allranks.train.objective import loss_and_metrics
from allranks.train.stepping import Parts, Step, apply_gradients, close_step


def autocast(parts: Parts) -> AbstractContextManager[Any]:
    """The precision, for steps that call the model without the objective."""
    kind = parts.precision.autocast
    return nullcontext() if kind is None else torch.autocast(*kind)


def closure_step(parts: Parts) -> Step:
    """LBFGS and its like: the optimizer itself asks for loss and gradients, as often as it wants.

    It decides by the loss, so all ranks are given the same one: the mean over their samples.
    """
    optimizer = parts.optimizers[0]

    def run(data: Any, batch_weight: BatchWeight | None) -> bool:
        first: list[Any] = []

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss, metrics = parts.objective(data)
            weighted = loss if batch_weight is None else loss * batch_weight.factor
            parts.strategy.backward(weighted)
            if parts.clip_norm is not None:
                parts.grad_norm = parts.strategy.clip_norm(parts.parameters, parts.clip_norm)
            if not first:
                first.extend((loss.detach(), metrics))
            return _mean_over_ranks(weighted.detach(), parts.size)

        optimizer.step(closure)
        count = parts.count(data, batch_weight)
        parts.meter.add(first[0], first[1], count)
        close_step(parts)
        return True

    return run


def _mean_over_ranks(value: torch.Tensor, size: int) -> torch.Tensor:
    if size > 1:
        value = value.clone()
        dist.all_reduce(value)
        value /= size
    return value


def needs_closure(optimizer: Any) -> bool:
    """Whether ``step`` cannot be called without a function that gives the loss."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


class ManualStep:
    """What a user's ``training_step(model, batch, step)`` drives: several optimizers, any order."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.optimizers = dict(zip(parts.names, parts.optimizers, strict=True))
        self.weight = 1.0
        self.stepped = False

    def backward(self, loss: torch.Tensor) -> None:
        """Gradients of this loss, weighted as this rank's batch demands."""
        scaler = self._parts.precision.scaler
        scaled = loss if self.weight == 1.0 else loss * self.weight
        self._parts.strategy.backward(scaled if scaler is None else scaler.scale(scaled))

    def update(self, name: str | int) -> None:
        """Average this optimizer's gradients over the ranks, clip, step, and set them to zero."""
        optimizer = self.optimizers[str(name)]
        held = [p for group in optimizer.param_groups for p in group["params"]]
        self._parts.strategy.reduce_gradients(held)
        apply_gradients(self._parts, [optimizer])
        self.stepped = True


def manual_step(parts: Parts, training_step: Callable[..., Any]) -> Step:
    """The user's function makes the steps; a batch counts as one step."""
    control = ManualStep(parts)

    def run(data: Any, batch_weight: BatchWeight | None) -> bool:
        control.weight, control.stepped = (
            1.0 if batch_weight is None else batch_weight.factor,
            False,
        )
        with autocast(parts):
            result = training_step(parts.model, data, control)
        loss, metrics = _manual_result(result)
        count = parts.count(data, batch_weight)
        parts.meter.add(torch.as_tensor(loss).detach(), metrics, count)
        for optimizer in parts.optimizers:  # what a loss left in those it was not for
            optimizer.zero_grad()
        close_step(parts, scales=control.stepped)
        return True

    return run


def _manual_result(result: Any) -> tuple[torch.Tensor, Mapping[str, Any]]:
    """A step of several losses may return a dict without one called "loss", or nothing."""
    if result is None or (isinstance(result, Mapping) and "loss" not in result):
        return torch.zeros(()), result or {}
    return loss_and_metrics(result, "training_step")


def custom_step(parts: Parts, optimize_step: Callable[..., Any], loss_fn: Any) -> Step:
    """The user's own ``optimize_step(model, optimizer, loss_fn, batch)`` does the whole step."""

    def run(data: Any, batch_weight: BatchWeight | None) -> bool:
        with autocast(parts):
            result = optimize_step(parts.model, parts.optimizers[0], loss_fn, data)
        if isinstance(result, tuple) and len(result) == 2:  # the loss may be a float
            result = torch.as_tensor(result[0]), result[1]
        loss, metrics = loss_and_metrics(result, "optimize_step")
        count = parts.count(data, batch_weight)
        parts.meter.add(loss.detach(), metrics, count)
        close_step(parts)
        return True

    return run


def gradient_free_step(parts: Parts, optimizer: Any) -> Step:
    """Ask for a candidate, try it on all ranks' data, tell the loss."""
    parts.search = search = Search(parts, optimizer)
    return search.step


class Search:
    """Training without gradients. Rank 0 holds the optimizer, every rank the best that was tried."""

    def __init__(self, parts: Parts, optimizer: Any) -> None:
        self._parts, self._optimizer = parts, optimizer
        self._parameters = [p for p in parts.model.parameters() if p.requires_grad]
        self._best: tuple[float, torch.Tensor | None] = (float("inf"), None)
        self._began_at = 0
        """The step from which on the optimizer was told of every candidate."""

    def step(self, data: Any, batch_weight: BatchWeight | None) -> bool:
        """One candidate."""
        with torch.no_grad():
            self._try_one(data, batch_weight)
        close_step(self._parts)
        return True

    def _try_one(self, data: Any, batch_weight: BatchWeight | None) -> None:
        parts = self._parts
        candidate = self._optimizer.ask() if parts.rank == 0 else None
        vector = self._given(None if candidate is None else candidate.value)
        loss, metrics = parts.objective(data)
        count = parts.count(data, batch_weight)
        seen = torch.stack([loss.double() * count, torch.tensor(float(count)).to(loss.device)])
        if parts.size > 1:
            dist.all_reduce(seen)
        reached = (seen[0] / seen[1]).item()
        if candidate is not None:
            self._optimizer.tell(candidate, reached)
        if reached < self._best[0]:
            self._best = (reached, vector)
        parts.meter.add(loss.detach(), metrics, count)

    def finish(self) -> None:
        """Leave the model with what was found: the optimizer's word, else the best that was tried."""
        word = getattr(self._optimizer, "provide_recommendation", None)
        with torch.no_grad():
            if word is not None and not self._began_at:
                self._given(word().value if self._parts.rank == 0 else None)
            elif self._best[1] is not None:
                nn.utils.vector_to_parameters(self._best[1].clone(), self._parameters)

    def _given(self, value: Any) -> torch.Tensor:
        """Rank 0's parameters, put into every rank's model."""
        vector = nn.utils.parameters_to_vector(self._parameters)
        if value is not None:
            vector.copy_(torch.as_tensor(value).reshape(-1))
        if self._parts.size > 1:
            dist.broadcast(vector, 0)
        nn.utils.vector_to_parameters(vector.clone(), self._parameters)
        return vector

    @property
    def _keeps_state(self) -> bool:
        return all(hasattr(self._optimizer, name) for name in ("state_dict", "load_state_dict"))

    def tell_losses(self, say: Callable[[str], None]) -> None:
        """What a resumption loses, or has lost."""
        name = type(self._optimizer).__name__
        if self._began_at:
            say(
                f"WARNING: the checkpoint holds nothing of the optimizer {name}: its search begins anew "
                f"at step {self._began_at}. The best candidate before that is kept."
            )
        elif not self._keeps_state:
            say(
                f"WARNING: {name} has no state_dict() and load_state_dict(): a training that goes on "
                "from a checkpoint begins its search anew. Only the best candidate is kept."
            )

    def state(self) -> dict[str, Any]:
        """For a checkpoint, in which rank 0's counts."""
        loss, vector = self._best
        is_asked = self._parts.rank == 0 and self._keeps_state
        return {
            "optimizer": self._optimizer.state_dict() if is_asked else None,
            "best": [loss, None if vector is None else vector.cpu()],
            "began_at": self._began_at,
        }

    def load_state(self, state: Mapping[str, Any], step: int) -> None:
        """Go on from there, at this step."""
        loss, vector = state["best"]
        device = self._parameters[0].device
        self._best = (loss, None if vector is None else vector.to(device))
        if state["optimizer"] is None or not self._keeps_state:
            self._began_at = step
            return
        self._began_at = state["began_at"]
        if self._parts.rank == 0:
            self._optimizer.load_state_dict(state["optimizer"])


def is_gradient_free(optimizer: Any) -> bool:
    """nevergrad's way: ask for a candidate, tell its loss."""
    return hasattr(optimizer, "ask") and hasattr(optimizer, "tell")
