"""The floating-point operations of a sample, counted once, in a step of the training itself.

Each operation passes by the counter and runs as it would without, so the step gives the same numbers. What
`torch.compile` made cannot be counted and would run in another way under a counter: then nothing is.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from allranks.train.data.batch_transfer import count_samples

if TYPE_CHECKING:
    from allranks.train.data import BatchWeight
    from allranks.train.loop import Fit
    from allranks.train.marks import Marks
    from allranks.train.stepping import Step

STRATEGIES = ("single", "ddp")
"""Under the others a rank computes with parts of tensors, or an engine of its own makes the step."""


class Counter(TorchDispatchMode):
    """Adds up matrix products, convolutions and attention of a forward and a backward pass.

    What a backward pass computes again (activation checkpointing) is not counted: gradients are computed
    with gradients switched off, activations with gradients switched on.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.total: float | None = 0.0
        """None: something came by of which nobody knows how much it is."""
        self.phase = "forward"

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not hasattr(
            func, "_overloadpacket"
        ):  # flex_attention and its like hold code of their own
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

    def ended(self, phase: str) -> None:
        """This phase is over."""
        self.phase = {"forward": "backward"}.get(phase, "optimizer")


class Counting:
    """Counts one batch of one rank."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self.flops = 0.0
        """Of one sample, forward and backward; 0 when it is not known."""
        self.is_wanted = True
        self.has_run = False

    def around(self, step: Step) -> Step:
        """The step, of which the first batch is counted."""

        def run(data: Any, batch_weight: BatchWeight | None) -> bool:
            if not self.is_wanted or was_compiled():
                self.is_wanted = False
                return step(data, batch_weight)
            self.is_wanted, self.has_run = False, True
            return self._counted(step, data, batch_weight)

        return run

    def _counted(self, step: Step, data: Any, batch_weight: BatchWeight | None) -> bool:
        counter = Counter()
        self._marks.listener = counter.ended
        try:
            with counter:
                stepped = step(data, batch_weight)
        finally:
            self._marks.listener = None
        self.flops = (counter.total or 0.0) / max(count_samples(data), 1)
        return stepped


def can_count(fit: Fit) -> bool:
    """Whether a step may be counted; that nothing was compiled is looked at again before it."""
    if fit.engine.strategy.name not in STRATEGIES or fit.compiler.mode is not None:
        return False
    return not any(map(_is_compiled, fit.engine.objective.modules()))


def _is_compiled(module: nn.Module) -> bool:
    return module._compiled_call_impl is not None or isinstance(module, torch.jit.ScriptModule)


def was_compiled() -> bool:
    """Whether torch.compile has made anything in this process, by a decorator inside a model perhaps."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters["stats"])
