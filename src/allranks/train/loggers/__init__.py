"""Where metrics go: a JSONL file always, and CSV, TensorBoard, MLflow or W&B when asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from allranks.core.lazy import names_from

if TYPE_CHECKING:
    from allranks.train.loggers.base import Logger as Logger
    from allranks.train.loggers.base import Loggers as Loggers
    from allranks.train.loggers.base import RunInfo as RunInfo
    from allranks.train.loggers.csv import CsvLogger as CsvLogger
    from allranks.train.loggers.jsonl import JsonlLogger as JsonlLogger
    from allranks.train.loggers.make import make_loggers as make_loggers
    from allranks.train.loggers.mlflow import MLflowLogger as MLflowLogger
    from allranks.train.loggers.tensorboard import TensorBoardLogger as TensorBoardLogger
    from allranks.train.loggers.wandb import WandbLogger as WandbLogger

_HOMES = {
    "CsvLogger": "csv",
    "JsonlLogger": "jsonl",
    "Logger": "base",
    "Loggers": "base",
    "MLflowLogger": "mlflow",
    "RunInfo": "base",
    "TensorBoardLogger": "tensorboard",
    "WandbLogger": "wandb",
    "make_loggers": "make",
}

__all__ = [*_HOMES]
__getattr__ = names_from(__name__, _HOMES)
