"""torch.compile when it pays: decided by timing the run itself, and reverted when it does not help.

``auto`` (GPUs only) times a few eager steps, and compiles when a quarter of the remaining time is more
than compiling costs. Then it compares: a compiled step that is not faster is dropped. Steps of a few
milliseconds are bound by kernel launches, so those also try CUDA graphs. A model that does not compile
continues uncompiled, with one line that gives the reason.

Measuring costs a device synchronisation at a handful of steps and nothing in between.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

SETTLE = 4
"""Steps between a change and the start of the timing."""
SAMPLE = 12
"""Steps that are timed."""
GAIN = 0.25
"""The fraction of a step that compiling is assumed to save, before it is measured."""
SHORT_STEP = 0.004
"""Seconds; a shorter step is bound by kernel launches."""


class Compiler:
    """Compiles the objective in place, and reverts it."""

    def __init__(
        self,
        objective: nn.Module,
        choice: str | bool,
        device: torch.device,
        *,
        say: Callable[[str], None],
        mean_over_ranks: Callable[[float], float],
        may_graph: bool = False,
    ) -> None:
        self._objective = objective
        self._choice = choice
        self._device = device
        self._say = say
        self._mean_over_ranks = mean_over_ranks
        self._may_graph = may_graph and device.type == "cuda"
        self._remaining: Callable[[int], float | None] = lambda _: None
        self._eager = self._best = 0.0
        self._clock = 0.0
        self._phase = "off"
        self.mode: str | None = None
        """The current mode; None for eager."""
        self.next_check: int | None = None
        """The step at which to call `check`; None when all is decided."""
        self.trial = False
        """The next batch is the first one compiled, and may fail to compile."""

    def start(self, step: int, remaining: Callable[[int], float | None]) -> None:
        """Begin before the first step; ``remaining(step)`` gives the steps left, None when unknown."""
        self._remaining = remaining
        if self._choice == "auto" and self._device.type == "cuda":
            self._wait("eager", step)
        elif self._choice not in ("auto", False):
            self._set("default" if self._choice is True else str(self._choice))
            self._phase = "chosen"

    @property
    def uses_graphs(self) -> bool:
        """Whether CUDA graphs are used: outputs are overwritten by the next step."""
        return self.mode in ("reduce-overhead", "max-autotune")

    def check(self, step: int) -> None:
        """Take the time, and decide how the next steps run; the same on every rank."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        now = time.perf_counter()
        if self._phase.endswith(":settle"):
            self._phase = self._phase.removesuffix(":settle")
            self._clock = now
            self.next_check = step + SAMPLE
            return
        self.next_check = None
        seconds = self._mean_over_ranks((now - self._clock) / SAMPLE)
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
        # Without a known end: compile once the run has taken as long as compiling would.
        worth = GAIN * seconds * (left if left is not None else 2 * step)
        if worth > cost:
            self._say(
                f"compiling: a step takes {1000 * seconds:.1f} ms, "
                + (
                    f"{left:,.0f} steps are left"
                    if left is not None
                    else "the number of steps is unknown"
                )
                + f", compiling takes about {cost:.0f} s (compile=False switches it off)"
            )
            self._set("default")
            self._wait("default", step)
        elif left is None:
            self._wait("eager", 2 * step - SETTLE)  # check again after twice as many steps
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
        self.next_check = step + SETTLE

    def _set(self, mode: str) -> None:
        """Compile at the next call. The last, smaller batch of an epoch always runs uncompiled."""
        torch._dynamo.reset()
        self._objective.compile(mode=None if mode == "default" else mode)
        self.mode = mode
        self.trial = True

    def _revert(self, why: str) -> None:
        self._objective._compiled_call_impl = None
        self.mode, self._phase, self.next_check, self.trial = None, "decided", None, False
        self._say(f"not compiled: {why}")

    def give_up(self, error: Exception) -> None:
        """Continue uncompiled after the first compiled batch raised this error."""
        lines = str(error).strip().splitlines() or ["no message"]
        # "backend='inductor' raised:" says little without the line after it.
        text = " ".join(lines[: 2 if lines[0].endswith(":") else 1])
        check, phase = self.next_check, self._phase
        self._revert(f"{type(error).__name__}: {text}")
        # Other ranks may have compiled: they wait for this one at the next check.
        self.next_check, self._phase = check, phase

    def eager(self) -> Any:
        """Return a context in which the objective runs uncompiled: for batches of another shape."""
        return _Eager(self._objective)


class _Eager:
    """Disables the compiled call for one batch, so that another shape does not recompile."""

    def __init__(self, objective: nn.Module) -> None:
        self._objective = objective
        self._kept: Any = None

    def __enter__(self) -> None:
        self._kept = self._objective._compiled_call_impl
        self._objective._compiled_call_impl = None

    def __exit__(self, *_: object) -> None:
        self._objective._compiled_call_impl = self._kept


def estimated_cost(model: nn.Module) -> float:
    """Estimate the seconds that compiling takes: it grows with the number of operations."""
    leaves = sum(1 for module in model.modules() if not list(module.children()))
    return 8.0 + 0.15 * leaves


def compile_errors() -> tuple[type[Exception], ...]:
    """Return what a model that does not compile raises."""
    from torch._dynamo import exc

    return (exc.TorchDynamoException,)


def _pair(new: float, old: float) -> str:
    return f"{1000 * new:.2f} ms a step, {1000 * old:.2f} ms before"
