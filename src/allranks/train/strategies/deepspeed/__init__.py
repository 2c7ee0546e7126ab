"""The deepspeed strategy: ZeRO and offloading in the Trainer, and weights from DeepSpeed's checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from allranks.core.lazy_attributes import names_from

if TYPE_CHECKING:
    from allranks.train.strategies.deepspeed.consolidation import consolidate as consolidate
    from allranks.train.strategies.deepspeed.strategy import DeepSpeed as DeepSpeed

__getattr__ = names_from(__name__, {"DeepSpeed": "strategy", "consolidate": "consolidation"})
__all__ = ["DeepSpeed", "consolidate"]
