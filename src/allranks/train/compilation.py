"""torch.compile when it pays: measured on the run itself, explained, and undone when it does not.

``auto`` (GPUs only) looks at a few eager steps, and compiles when a quarter of the time that is left
is worth more than compiling costs. Then it compares: a compiled step that is not faster is dropped.
Steps of a few milliseconds are bound by launching kernels, so those also try CUDA graphs. A model
that does not compile trains on as it was, with one line that says why.

The measuring costs a device synchronisation at a handful of steps and nothing in between.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from allranks.train.data import BatchWeight
    from allranks.train.loop import Fit
    from allranks.train.trainer import Trainer

SETTLE = 4
"""Steps after a change before the clock starts."""
SAMPLE = 12
"""Steps that are timed."""
GAIN = 0.25
"""The part of a step that compiling saves, as a rule, before it was measured."""
SHORT_STEP = 0.004
"""Seconds; below it, launching kernels is what a step waits for."""


class Compiler:
    """Compiles the objective in place, and takes it back."""

    def __init__(
        self,
        objective: nn.Module,
        choice: str | bool,
        device: torch.device,
        *,
        say: Callable[[str], None],
        agree: Callable[[float], float],
        may_graph: bool = False,
    ) -> None:
        self._objective = objective
        self._choice = choice
        self._device = device
        self._say = say
        self._agree = agree
        self._may_graph = may_graph and device.type == "cuda"
        self._remaining: Callable[[int], float | None] = lambda _: None
        self._eager = self._best = 0.0
        self._clock = 0.0
        self._phase = "off"
        self.mode: str | None = None
        """The mode that is in force; None for eager."""
        self.next_look: int | None = None
        """The step at which `look` wants to be called; None when all is decided."""
        self.trial = False
        """The next batch is the first with new code, and may fail to compile."""

    def start(self, step: int, remaining: Callable[[int], float | None]) -> None:
        """Begin before the first step. ``remaining``: steps left at a step, None when unknown."""
        self._remaining = remaining
        if self._choice == "auto" and self._device.type == "cuda":
            self._wait("eager", step)
        elif self._choice not in ("auto", False):
            self._set("default" if self._choice is True else str(self._choice))
            self._phase = "chosen"

    @property
    def graphs(self) -> bool:
        """CUDA graphs are in force: outputs are overwritten by the next step."""
        return self.mode in ("reduce-overhead", "max-autotune")

    def look(self, step: int) -> None:
        """Take the time, and decide what the steps to come run with; the same on every rank."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        now = time.perf_counter()
        if self._phase.endswith(":settle"):
            self._phase = self._phase.removesuffix(":settle")
            self._clock = now
            self.next_look = step + SAMPLE
            return
        self.next_look = None
        seconds = self._agree((now - self._clock) / SAMPLE)
        if self._phase != "eager" and self.mode is None:  # it failed to compile here
            self._phase = "decided"
            return
        {"eager": self._after_eager, "default": self._after_default}.get(
            self._phase, self._after_graphs
        )(step, seconds)

    def _after_eager(self, step: int, seconds: float) -> None:
        if not self._eager:
            self._eager = self._best = seconds
        left = self._remaining(step)
        cost = estimated_cost(self._objective)
        # Without a known end: compile once as much time was spent as compiling costs.
        worth = GAIN * seconds * (left if left is not None else 2 * step)
        if worth > cost:
            self._say(
                f"compiling: a step takes {1000 * seconds:.1f} ms, "
                + (f"{left:,.0f} steps are left" if left is not None else "with no end known")
                + f", compiling takes about {cost:.0f} s (compile=False switches it off)"
            )
            self._set("default")
            self._wait("default", step)
        elif left is None:
            self._wait("eager", 2 * step - SETTLE)  # look again when twice as much was done
        else:
            self._phase = "decided"

    def _after_default(self, step: int, seconds: float) -> None:
        if seconds > 0.98 * self._eager:
            self._revert(f"compiled steps are no faster ({_pair(seconds, self._eager)})")
            return
        self._say(f"compiled: {_pair(seconds, self._eager)}")
        self._best = seconds
        left = self._remaining(step)
        if self._may_graph and seconds < SHORT_STEP and (left is None or left > 2000):
            self._set("reduce-overhead")
            self._wait("graphs", step)
        else:
            self._phase = "decided"

    def _after_graphs(self, step: int, seconds: float) -> None:
        self._phase = "decided"
        if seconds < 0.98 * self._best:
            self._say(f"CUDA graphs: {_pair(seconds, self._best)}")
        else:
            self._set("default")

    def _wait(self, phase: str, step: int) -> None:
        self._phase = f"{phase}:settle"
        self.next_look = step + SETTLE

    def _set(self, mode: str) -> None:
        """Compile at the next call. The odd last batch of an epoch never comes here."""
        torch._dynamo.reset()
        self._objective.compile(mode=None if mode == "default" else mode)
        self.mode = mode
        self.trial = True

    def _revert(self, why: str) -> None:
        self._objective._compiled_call_impl = None
        self.mode, self._phase, self.next_look, self.trial = None, "decided", None, False
        self._say(f"not compiled: {why}")

    def failed(self, error: Exception) -> None:
        """The trial raised: go on without, and say what the compiler said."""
        lines = str(error).strip().splitlines() or ["no message"]
        # "backend='inductor' raised:" says little without the line after it.
        text = " ".join(lines[: 2 if lines[0].endswith(":") else 1])
        look, phase = self.next_look, self._phase
        self._revert(f"{type(error).__name__}: {text}")
        # Other ranks may have compiled: they wait for this one at the next look.
        self.next_look, self._phase = look, phase

    def eager(self) -> Any:
        """A context in which the objective runs as written: for batches of another shape."""
        return _Eager(self._objective)


class _Eager:
    """Puts the compiled call away for one batch, so that an odd shape compiles nothing new."""

    def __init__(self, objective: nn.Module) -> None:
        self._objective = objective
        self._kept: Any = None

    def __enter__(self) -> None:
        self._kept = self._objective._compiled_call_impl
        self._objective._compiled_call_impl = None

    def __exit__(self, *_: object) -> None:
        self._objective._compiled_call_impl = self._kept


def careful_step(trainer: Trainer, fit: Fit, data: Any, batch_weight: BatchWeight | None) -> bool:
    """A batch of an odd shape runs uncompiled; the first compiled one may fail to compile."""
    compiler = fit.compiler
    if not compiler.trial:
        with compiler.eager() if batch_weight is not None and compiler.mode else nullcontext():
            return fit.step(data, batch_weight)
    if batch_weight is not None:
        with compiler.eager():
            return fit.step(data, batch_weight)
    compiler.trial = False
    if fit.engine.session.device.type == "cuda":
        fit.parts.keep_loss = _cloned if compiler.graphs else torch.Tensor.detach
    trainer._remake_step(fit)
    try:
        return fit.step(data, batch_weight)
    except compile_errors() as error:
        compiler.failed(error)
        for optimizer in fit.engine.optimizers:
            optimizer.zero_grad()
        return fit.step(data, batch_weight)


def _cloned(loss: torch.Tensor) -> torch.Tensor:
    return loss.detach().clone()


def estimated_cost(model: nn.Module) -> float:
    """Seconds that compiling takes, from experience: it grows with the number of operations."""
    leaves = sum(1 for module in model.modules() if not list(module.children()))
    return 8.0 + 0.15 * leaves


def compile_errors() -> tuple[type[Exception], ...]:
    """What a model that does not compile raises."""
    from torch._dynamo import exc

    return (exc.TorchDynamoException,)


def _pair(new: float, old: float) -> str:
    return f"{1000 * new:.2f} ms a step, {1000 * old:.2f} ms before"
