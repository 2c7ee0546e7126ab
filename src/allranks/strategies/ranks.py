"""What strategies over several ranks share: rank 0's values reach everyone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from allranks.errors import WorldError
from allranks.strategies.base import Strategy
from allranks.strategies.gradients import broadcast_tensors
from allranks.strategies.states import Stub


class OverRanks(Strategy):
    """A strategy whose ranks talk through torch.distributed's default group."""

    def sync_buffers(self) -> None:
        """Give all ranks rank 0's buffers. Collective."""
        broadcast_tensors(self.target.buffers())

    def _require_group(self) -> None:
        if not dist.is_initialized():
            raise WorldError(
                f"The {self.name} strategy needs a process group: call allranks.init() first."
            )

    def _share(self, value: Any) -> Any:
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def _assign(self, pairs: Sequence[tuple[Tensor, Tensor | None]]) -> None:
        for target, source in pairs:
            if source is not None:
                target.copy_(source)
        broadcast_tensors(target for target, _ in pairs)

    def _spread(self, source: Tensor | None, stub: Stub, parameter: Any) -> Tensor:
        whole = torch.empty(stub.shape, dtype=stub.dtype, device=self.device)
        if source is not None:
            whole.copy_(source)
        broadcast_tensors([whole])
        return whole
