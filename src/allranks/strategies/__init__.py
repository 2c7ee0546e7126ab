"""How one model trains over the ranks: one file for each way, all behind `Strategy`. Imports torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from allranks._lazy import names_from
from allranks.strategies.base import Strategy as Strategy
from allranks.strategies.base import StrategyOptions as StrategyOptions
from allranks.strategies.choose import choose as choose
from allranks.strategies.ddp import DDP as DDP
from allranks.strategies.single import Single as Single

if TYPE_CHECKING:
    from allranks.strategies.deepspeed import DeepSpeed as DeepSpeed
    from allranks.strategies.fsdp import FSDP as FSDP
    from allranks.strategies.horovod import Horovod as Horovod

__getattr__ = names_from(__name__, {"DeepSpeed": "deepspeed", "FSDP": "fsdp", "Horovod": "horovod"})
__all__ = ["DDP", "FSDP", "DeepSpeed", "Horovod", "Single", "Strategy", "StrategyOptions", "choose"]
