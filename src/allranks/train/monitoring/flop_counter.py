"""The floating-point operations of a sample, counted once, in a step of the training itself.

Each operation passes through the counter and runs as it would without, so the step gives the same numbers.
What `torch.compile` made cannot be counted and would run differently under a counter: then nothing is.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from allranks.train.context import TrainContext
from allranks.train.data import BatchWeight
from allranks.train.data.batch_transfer import count_samples
from allranks.train.step.phase_timer import PhaseTimer
from allranks.train.step.step_functions import Step

STRATEGIES = ("single", "ddp")
"""With other strategies a rank computes with parts of tensors, or another engine makes the step."""


class FlopCounter(TorchDispatchMode):
    """Adds up matrix products, convolutions and attention of a forward and a backward pass.

    Recomputed activations (activation checkpointing) are not counted: gradients are computed with gradients
    switched off, activations with gradients switched on.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.total: float | None = 0.0
        """None once there was an operation whose size is unknown."""
        self.phase = "forward"

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not hasattr(func, "_overloadpacket"):  # flex_attention and the like have their own code
            self.total = None
        elif self._counts and func._overloadpacket in flop_registry:
            self._add(flop_registry[func._overloadpacket], args, kwargs, result)
        return result

    @property
    def _counts(self) -> bool:
        if self.total is None or self.phase == "optimizer":
            return False
        return self.phase == "forward" or not torch.is_grad_enabled()

    def _add(self, formula: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        try:
            self.total = (self.total or 0.0) + formula(*args, **kwargs, out_val=result)
        except Exception:  # noqa: BLE001  a formula that does not fit costs the count, not the step
            self.total = None

    def end_phase(self, phase: str) -> None:
        """Go on to the phase after this one."""
        self.phase = {"forward": "backward"}.get(phase, "optimizer")


class FlopMeasurement:
    """Counts one batch of one rank."""

    def __init__(self, timer: PhaseTimer) -> None:
        self._timer = timer
        self.per_sample = 0.0
        """FLOPs of one sample, forward and backward; 0 when unknown."""
        self.is_wanted = True
        self.has_run = False

    def around(self, step: Step) -> Step:
        """Return the step, of which the first batch is counted."""

        def run(data: Any, batch_weight: BatchWeight | None) -> bool:
            if not self.is_wanted or has_compiled():
                self.is_wanted = False
                return step(data, batch_weight)
            self.is_wanted, self.has_run = False, True
            return self._count(step, data, batch_weight)

        return run

    def _count(self, step: Step, data: Any, batch_weight: BatchWeight | None) -> bool:
        counter = FlopCounter()
        self._timer.listener = counter.end_phase
        try:
            with counter:
                stepped = step(data, batch_weight)
        finally:
            self._timer.listener = None
        self.per_sample = (counter.total or 0.0) / max(count_samples(data), 1)
        return stepped


def can_count(context: TrainContext) -> bool:
    """Whether a step may be counted; that nothing was compiled is checked again before it."""
    engine = context.engine
    if engine.strategy.name not in STRATEGIES or context.compiler.mode is not None:
        return False
    return not any(map(_is_compiled, engine.objective.modules()))


def _is_compiled(module: nn.Module) -> bool:
    return module._compiled_call_impl is not None or isinstance(module, torch.jit.ScriptModule)


def has_compiled() -> bool:
    """Whether torch.compile was used in this process, possibly by a decorator inside a model."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters["stats"])
