"""Steps that the user's code or the optimizer drives.

closure        an optimizer that evaluates the loss several times per step (LBFGS)
manual         the user's training_step(model, batch, step) drives several optimizers
custom         the user's own optimize_step(model, optimizer, loss_fn, batch)
gradient-free  an optimizer with ask() and tell() (nevergrad)
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
from allranks.train.step.loss_module import loss_and_metrics
from allranks.train.step.step_functions import Step, StepContext, apply_gradients, finish_step


def autocast(context: StepContext) -> AbstractContextManager[Any]:
    """Return the autocast context for steps that call the model without the objective."""
    kind = context.precision.autocast
    return nullcontext() if kind is None else torch.autocast(*kind)


def closure_step(context: StepContext) -> Step:
    """Make the step with a closure: LBFGS computes loss and gradients as often as it needs.

    It decides by the loss, so all ranks get the same one: the mean over their samples.
    """
    optimizer = context.optimizers[0]

    def run(data: Any, batch_weight: BatchWeight | None) -> bool:
        first: list[Any] = []

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss, metrics = context.objective(data)
            weighted = loss if batch_weight is None else loss * batch_weight.factor
            context.strategy.backward(weighted)
            if context.clip_norm is not None:
                context.grad_norm = context.strategy.clip_norm(
                    context.parameters, context.clip_norm
                )
            if not first:
                first.extend((loss.detach(), metrics))
            return _mean_over_ranks(weighted.detach(), context.size)

        optimizer.step(closure)
        count = context.count(data, batch_weight)
        context.accumulator.add(first[0], first[1], count)
        finish_step(context)
        return True

    return run


def _mean_over_ranks(value: torch.Tensor, size: int) -> torch.Tensor:
    if size > 1:
        value = value.clone()
        dist.all_reduce(value)
        value /= size
    return value


def needs_closure(optimizer: Any) -> bool:
    """Whether ``optimizer.step`` needs a closure that computes the loss."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


class ManualStep:
    """What a user's ``training_step(model, batch, step)`` drives: several optimizers, any order."""

    def __init__(self, context: StepContext) -> None:
        self._parts = context
        self.optimizers = dict(zip(context.names, context.optimizers, strict=True))
        self.weight = 1.0
        self.stepped = False

    def backward(self, loss: torch.Tensor) -> None:
        """Compute the gradients of this loss, weighted by this rank's part of the batch."""
        scaler = self._parts.precision.scaler
        scaled = loss if self.weight == 1.0 else loss * self.weight
        self._parts.strategy.backward(scaled if scaler is None else scaler.scale(scaled))

    def update(self, name: str | int) -> None:
        """Average this optimizer's gradients over the ranks, clip, step, and zero them."""
        optimizer = self.optimizers[str(name)]
        held = [p for group in optimizer.param_groups for p in group["params"]]
        self._parts.strategy.reduce_gradients(held)
        apply_gradients(self._parts, [optimizer])
        self.stepped = True


def manual_step(context: StepContext, training_step: Callable[..., Any]) -> Step:
    """Let the user's ``training_step`` make the steps; a batch counts as one step."""
    control = ManualStep(context)

    def run(data: Any, batch_weight: BatchWeight | None) -> bool:
        control.weight, control.stepped = (
            1.0 if batch_weight is None else batch_weight.factor,
            False,
        )
        with autocast(context):
            result = training_step(context.model, data, control)
        loss, metrics = _manual_result(result)
        count = context.count(data, batch_weight)
        context.accumulator.add(torch.as_tensor(loss).detach(), metrics, count)
        for optimizer in (
            context.optimizers
        ):  # a loss may have left gradients in optimizers that were not updated
            optimizer.zero_grad()
        finish_step(context, scales=control.stepped)
        return True

    return run


def _manual_result(result: Any) -> tuple[torch.Tensor, Mapping[str, Any]]:
    """Accept a dict without "loss", or None, from a step with several losses."""
    if result is None or (isinstance(result, Mapping) and "loss" not in result):
        return torch.zeros(()), result or {}
    return loss_and_metrics(result, "training_step")


def custom_step(context: StepContext, optimize_step: Callable[..., Any], loss_fn: Any) -> Step:
    """Let the user's ``optimize_step(model, optimizer, loss_fn, batch)`` do the whole step."""

    def run(data: Any, batch_weight: BatchWeight | None) -> bool:
        with autocast(context):
            result = optimize_step(context.model, context.optimizers[0], loss_fn, data)
        if isinstance(result, tuple) and len(result) == 2:  # the loss may be a float
            result = torch.as_tensor(result[0]), result[1]
        loss, metrics = loss_and_metrics(result, "optimize_step")
        count = context.count(data, batch_weight)
        context.accumulator.add(loss.detach(), metrics, count)
        finish_step(context)
        return True

    return run


class GradientFreeSearch:
    """Training without gradients: ask for a candidate, try it on all ranks' data, tell the loss.

    Rank 0 holds the optimizer, every rank the best candidate.
    """

    def __init__(self, context: StepContext, optimizer: Any) -> None:
        self._parts, self._optimizer = context, optimizer
        self._parameters = [p for p in context.model.parameters() if p.requires_grad]
        self._best: tuple[float, torch.Tensor | None] = (float("inf"), None)
        self._began_at = 0
        """The step since which the optimizer knows all candidates."""

    def step(self, data: Any, batch_weight: BatchWeight | None) -> bool:
        """Try one candidate; the step function of gradient-free training."""
        with torch.no_grad():
            self._try_candidate(data, batch_weight)
        finish_step(self._parts)
        return True

    def _try_candidate(self, data: Any, batch_weight: BatchWeight | None) -> None:
        context = self._parts
        candidate = self._optimizer.ask() if context.rank == 0 else None
        vector = self._set_parameters(None if candidate is None else candidate.value)
        loss, metrics = context.objective(data)
        count = context.count(data, batch_weight)
        seen = torch.stack([loss.double() * count, torch.tensor(float(count)).to(loss.device)])
        if context.size > 1:
            dist.all_reduce(seen)
        reached = (seen[0] / seen[1]).item()
        if candidate is not None:
            self._optimizer.tell(candidate, reached)
        if reached < self._best[0]:
            self._best = (reached, vector)
        context.accumulator.add(loss.detach(), metrics, count)

    def finish(self) -> None:
        """Set the final parameters: the optimizer's recommendation, else the best candidate."""
        recommend = getattr(self._optimizer, "provide_recommendation", None)
        with torch.no_grad():
            if recommend is not None and not self._began_at:
                self._set_parameters(recommend().value if self._parts.rank == 0 else None)
            elif self._best[1] is not None:
                nn.utils.vector_to_parameters(self._best[1].clone(), self._parameters)

    def _set_parameters(self, value: Any) -> torch.Tensor:
        """Set rank 0's parameters in every rank's model."""
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

    def warn_of_lost_state(self, say: Callable[[str], None]) -> None:
        """Warn when a resumption loses, or has lost, the state of the optimizer."""
        name = type(self._optimizer).__name__
        if self._began_at:
            say(
                f"WARNING: the checkpoint has no state of the optimizer {name}: its search starts over "
                f"at step {self._began_at}. The best candidate before that is kept."
            )
        elif not self._keeps_state:
            say(
                f"WARNING: {name} has no state_dict() and load_state_dict(): a resumed training starts "
                "its search over. Only the best candidate is kept."
            )

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, which takes rank 0's."""
        loss, vector = self._best
        is_asked = self._parts.rank == 0 and self._keeps_state
        return {
            "optimizer": self._optimizer.state_dict() if is_asked else None,
            "best": [loss, None if vector is None else vector.cpu()],
            "began_at": self._began_at,
        }

    def load_state(self, state: Mapping[str, Any], step: int) -> None:
        """Restore the state at this step."""
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
    """Whether the optimizer has ask() and tell(), as nevergrad's have."""
    return hasattr(optimizer, "ask") and hasattr(optimizer, "tell")


def optimize_step(
    model: Any, optimizer: Any, loss_fn: Any, xs: Any, device: Any = None, dtype: Any = None
) -> tuple[Any, dict[str, Any]]:
    """Run forward, backward and one step of ``optimizer``; return the loss and the metrics.

    ``loss_fn`` is what the Trainer takes: a name, a criterion, or a function of (model, batch). The
    Trainer recognizes this function and runs its own, faster step instead. The loss stays on its
    device: ``float(loss)`` waits for it.
    """
    from allranks.train.data import to_device
    from allranks.train.step.loss_module import make_compute

    batch = xs if device is None and dtype is None else to_device(xs, device, dtype)
    optimizer.zero_grad()
    loss, metrics = make_compute(loss_fn)(model, batch)
    loss.backward()
    optimizer.step()
    return loss.detach(), dict(metrics)
