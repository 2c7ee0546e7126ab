"""One process: the model itself on its device."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torch.optim import Optimizer

from allranks.train.strategies.base import Strategy


class Single(Strategy):
    """Training in one process, without communication."""

    name = "single"

    def wrap_model(self, optimizers: Sequence[Optimizer]) -> nn.Module:
        return self.target.to(self.device)

    def describe(self) -> str:
        """Return one line for the banner."""
        return f"single process on {self.device}"
