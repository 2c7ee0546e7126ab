"""The training library: ``from allranks import Trainer, TrainConfig, prepare``. Imports torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from allranks.core.lazy_attributes import names_from

if TYPE_CHECKING:
    from allranks.train.config import TrainConfig as TrainConfig
    from allranks.train.custom_loop import Prepared as Prepared
    from allranks.train.custom_loop import prepare as prepare
    from allranks.train.trainer import Trainer as Trainer

_HOMES = {
    "Prepared": "custom_loop",
    "prepare": "custom_loop",
    "TrainConfig": "config",
    "Trainer": "trainer",
}

__all__ = [*_HOMES]
__getattr__ = names_from(__name__, _HOMES)
