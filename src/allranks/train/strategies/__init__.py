"""Strategies: how one model trains over the ranks. One file for each, all behind `Strategy`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from allranks.core.lazy_attributes import names_from
from allranks.train.strategies.base import Strategy as Strategy
from allranks.train.strategies.base import StrategyOptions as StrategyOptions
from allranks.train.strategies.choose import choose_strategy as choose_strategy
from allranks.train.strategies.ddp import DDP as DDP
from allranks.train.strategies.single import Single as Single

if TYPE_CHECKING:
    from allranks.train.strategies.deepspeed import DeepSpeed as DeepSpeed
    from allranks.train.strategies.fsdp import FSDP as FSDP
    from allranks.train.strategies.horovod import Horovod as Horovod

__getattr__ = names_from(__name__, {"DeepSpeed": "deepspeed", "FSDP": "fsdp", "Horovod": "horovod"})
__all__ = [
    "DDP",
    "FSDP",
    "DeepSpeed",
    "Horovod",
    "Single",
    "Strategy",
    "StrategyOptions",
    "choose_strategy",
]
