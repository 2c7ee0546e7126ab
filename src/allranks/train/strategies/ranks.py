"""What strategies over several ranks share: rank 0's values reach everyone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from allranks.errors import WorldError
from allranks.train.checkpoint.plan import Stretch, is_shard
from allranks.train.strategies.base import Strategy
from allranks.train.strategies.gradients import broadcast_tensors
from allranks.train.strategies.states import Source


class OverRanks(Strategy):
    """A strategy whose ranks talk through torch.distributed's default group."""

    def sync_buffers(self) -> None:
        """Give all ranks rank 0's buffers. Collective."""
        broadcast_tensors(self.target.buffers())

    def of_rank_0(self, value: Any) -> Any:
        """A buffer as rank 0 holds all of it and the others nothing, also inside of what modules make."""
        if isinstance(value, Mapping):
            return {key: self.of_rank_0(each) for key, each in value.items()}
        if isinstance(value, (list, tuple)):
            kind = tuple if isinstance(value, tuple) else list
            return kind(self.of_rank_0(each) for each in value)
        if not isinstance(value, Tensor) or isinstance(value, nn.Parameter) or is_shard(value):
            return value
        if not value.numel():
            return value
        row = value.detach().reshape(-1)
        return Stretch(row if self.world.is_main else row[:0], tuple(value.shape), 0)

    def _require_group(self) -> None:
        if not dist.is_initialized():
            raise WorldError(
                f"The {self.name} strategy needs a process group: call allranks.init() first."
            )

    def _assign(self, pairs: Sequence[tuple[Tensor, str]], source: Source) -> None:
        """Rank 0 reads and hands out, so that a file is read once."""
        if self.world.is_main:
            super()._assign(pairs, source)
        broadcast_tensors(target for target, _ in pairs)
