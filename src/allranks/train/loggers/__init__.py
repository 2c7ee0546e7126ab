"""Where metrics go: a JSONL file always, and CSV, TensorBoard, MLflow or W&B when asked for."""

from __future__ import annotations

from allranks.train.loggers.base import Logger, Loggers, RunInfo
from allranks.train.loggers.csv import CsvLogger
from allranks.train.loggers.jsonl import JsonlLogger
from allranks.train.loggers.make import make_loggers
from allranks.train.loggers.mlflow import MLflowLogger
from allranks.train.loggers.tensorboard import TensorBoardLogger
from allranks.train.loggers.wandb import WandbLogger

__all__ = [
    "CsvLogger",
    "JsonlLogger",
    "Logger",
    "Loggers",
    "MLflowLogger",
    "RunInfo",
    "TensorBoardLogger",
    "WandbLogger",
    "make_loggers",
]
