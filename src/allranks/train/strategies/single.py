"""One process: the model as it is, on its device."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torch.optim import Optimizer

from allranks.train.strategies.base import Strategy


class Single(Strategy):
    """No communication at all."""

    name = "single"

    def _place(self, optimizers: Sequence[Optimizer]) -> nn.Module:
        return self.target.to(self.device)

    def describe(self) -> str:
        """One line for people."""
        return f"single process on {self.device}"
