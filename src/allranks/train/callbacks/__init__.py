"""Code that the training calls at named moments. One callback per file; ``base`` has the events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from allranks.core.lazy import names_from

if TYPE_CHECKING:
    from allranks.train.callbacks.base import EVENTS as EVENTS
    from allranks.train.callbacks.base import Callback as Callback
    from allranks.train.callbacks.base import Callbacks as Callbacks
    from allranks.train.callbacks.base import When as When
    from allranks.train.callbacks.best import BestTracker as BestTracker
    from allranks.train.callbacks.early_stopping import EarlyStopping as EarlyStopping
    from allranks.train.callbacks.gradients import GradientMonitor as GradientMonitor
    from allranks.train.callbacks.model_log import LogModel as LogModel
    from allranks.train.callbacks.plateau import ReduceOnPlateau as ReduceOnPlateau
    from allranks.train.callbacks.plots import WritePlots as WritePlots
    from allranks.train.callbacks.resample import R3Dataset as R3Dataset
    from allranks.train.callbacks.resample import Resample as Resample
    from allranks.train.callbacks.saving import SaveBest as SaveBest
    from allranks.train.callbacks.saving import SaveEvery as SaveEvery
    from allranks.train.callbacks.schedules import Cosine as Cosine
    from allranks.train.callbacks.schedules import Cyclic as Cyclic
    from allranks.train.callbacks.schedules import Schedule as Schedule
    from allranks.train.callbacks.schedules import StepDecay as StepDecay
    from allranks.train.callbacks.view import TrainerView as TrainerView

_HOMES = {
    "BestTracker": "best",
    "Callback": "base",
    "Callbacks": "base",
    "Cosine": "schedules",
    "Cyclic": "schedules",
    "EVENTS": "base",
    "EarlyStopping": "early_stopping",
    "GradientMonitor": "gradients",
    "LogModel": "model_log",
    "R3Dataset": "resample",
    "ReduceOnPlateau": "plateau",
    "Resample": "resample",
    "SaveBest": "saving",
    "SaveEvery": "saving",
    "Schedule": "schedules",
    "StepDecay": "schedules",
    "TrainerView": "view",
    "When": "base",
    "WritePlots": "plots",
}

__all__ = [*_HOMES]
__getattr__ = names_from(__name__, _HOMES)
