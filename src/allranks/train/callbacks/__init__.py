"""Code that the training calls at named moments. One callback per file; ``base`` has the events."""

from __future__ import annotations

from allranks.train.callbacks.base import EVENTS, Callback, Callbacks, When
from allranks.train.callbacks.best import BestTracker
from allranks.train.callbacks.early_stopping import EarlyStopping
from allranks.train.callbacks.gradients import GradientMonitor
from allranks.train.callbacks.model_log import LogModel
from allranks.train.callbacks.plateau import ReduceOnPlateau
from allranks.train.callbacks.plots import WritePlots
from allranks.train.callbacks.resample import R3Dataset, Resample
from allranks.train.callbacks.saving import SaveBest, SaveEvery
from allranks.train.callbacks.schedules import Cosine, Cyclic, Schedule, StepDecay
from allranks.train.callbacks.view import TrainerView

__all__ = [
    "EVENTS",
    "BestTracker",
    "Callback",
    "Callbacks",
    "Cosine",
    "Cyclic",
    "EarlyStopping",
    "GradientMonitor",
    "LogModel",
    "R3Dataset",
    "ReduceOnPlateau",
    "Resample",
    "SaveBest",
    "SaveEvery",
    "Schedule",
    "StepDecay",
    "TrainerView",
    "When",
    "WritePlots",
]
