"""An exponential moving average of the weights: smoother than the last step, validated instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from allranks.train.strategies.named_states import user_name


class Average:
    """Follows the trainable parameters; sharded ones shard by shard."""

    def __init__(
        self, model: nn.Module, decay: float, settle: Callable[[], None] = lambda: None
    ) -> None:
        """``settle`` ends what forward passes have gathered, before weights are touched."""
        self.decay = decay
        self.is_applied = False
        """Whether the model computes with the average now."""
        self._settle = settle
        settle()
        named = [(user_name(n), p) for n, p in model.named_parameters() if p.requires_grad]
        self._parameters = dict(named)
        self._live = [_local(p) for p in self._parameters.values()]
        self._kept = [tensor.detach().clone() for tensor in self._live]

    @torch.no_grad()
    def update(self) -> None:
        """Move a little towards the present weights: one fused operation for all of them."""
        torch._foreach_lerp_(self._kept, self._live, 1 - self.decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The model computes with the average inside this block."""
        self._settle()
        with torch.no_grad():
            present = [tensor.clone() for tensor in self._live]
            torch._foreach_copy_(self._live, self._kept)
        self.is_applied = True
        try:
            yield
        finally:
            self.is_applied = False
            self._settle()
            with torch.no_grad():
                torch._foreach_copy_(self._live, present)

    def tensors(self, beside: Callable[[Any, torch.Tensor], Any]) -> dict[str, Any]:
        """The averages by the user's names, each in the form of its parameter (`Strategy.beside`)."""
        pairs = zip(self._parameters.items(), self._kept, strict=True)
        return {name: beside(parameter, kept) for (name, parameter), kept in pairs}

    @torch.no_grad()
    def restart(self) -> None:
        """Take the present weights as the average."""
        torch._foreach_copy_(self._kept, self._live)


def _local(parameter: Any) -> torch.Tensor:
    """The tensor that holds this rank's numbers: a DTensor's own shard, or the parameter itself."""
    data = parameter.detach()
    local: torch.Tensor = data.to_local() if hasattr(data, "to_local") else data
    return local
