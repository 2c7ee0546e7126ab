"""Where metrics go: always a JSONL file; CSV, TensorBoard, MLflow and W&B on request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from allranks.core.lazy_attributes import names_from

if TYPE_CHECKING:
    from allranks.train.loggers.base import Logger as Logger
    from allranks.train.loggers.base import Loggers as Loggers
    from allranks.train.loggers.base import RunInfo as RunInfo
    from allranks.train.loggers.logger_registry import make_loggers as make_loggers
    from allranks.train.loggers.metric_files import CsvLogger as CsvLogger
    from allranks.train.loggers.metric_files import JsonlLogger as JsonlLogger
    from allranks.train.loggers.trackers import MLflowLogger as MLflowLogger
    from allranks.train.loggers.trackers import TensorBoardLogger as TensorBoardLogger
    from allranks.train.loggers.trackers import WandbLogger as WandbLogger

_HOMES = {
    "CsvLogger": "metric_files",
    "JsonlLogger": "metric_files",
    "Logger": "base",
    "Loggers": "base",
    "MLflowLogger": "trackers",
    "RunInfo": "base",
    "TensorBoardLogger": "trackers",
    "WandbLogger": "trackers",
    "make_loggers": "logger_registry",
}

__all__ = [*_HOMES]
__getattr__ = names_from(__name__, _HOMES)
