"""How one model trains over the ranks: one file for each way, all behind `Strategy`. Imports torch."""

from __future__ import annotations

from allranks.strategies.base import Strategy as Strategy
from allranks.strategies.base import StrategyOptions as StrategyOptions
from allranks.strategies.choose import choose as choose
from allranks.strategies.ddp import DDP as DDP
from allranks.strategies.fsdp import FSDP as FSDP
from allranks.strategies.single import Single as Single

__all__ = ["DDP", "FSDP", "Single", "Strategy", "StrategyOptions", "choose"]
