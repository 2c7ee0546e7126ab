"""Code that the training calls at named events: ``base`` has the events, the other files the callbacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from allranks.core.lazy_attributes import names_from

if TYPE_CHECKING:
    from allranks.train.callbacks.adaptive_sampling import R3Dataset as R3Dataset
    from allranks.train.callbacks.adaptive_sampling import Resample as Resample
    from allranks.train.callbacks.base import EVENTS as EVENTS
    from allranks.train.callbacks.base import Callback as Callback
    from allranks.train.callbacks.base import Callbacks as Callbacks
    from allranks.train.callbacks.base import TrainerView as TrainerView
    from allranks.train.callbacks.base import When as When
    from allranks.train.callbacks.gradient_monitor import GradientMonitor as GradientMonitor
    from allranks.train.callbacks.lr_schedules import Cosine as Cosine
    from allranks.train.callbacks.lr_schedules import Cyclic as Cyclic
    from allranks.train.callbacks.lr_schedules import LRSchedule as LRSchedule
    from allranks.train.callbacks.lr_schedules import StepDecay as StepDecay
    from allranks.train.callbacks.metric_tracking import BestTracker as BestTracker
    from allranks.train.callbacks.metric_tracking import EarlyStopping as EarlyStopping
    from allranks.train.callbacks.metric_tracking import ReduceOnPlateau as ReduceOnPlateau
    from allranks.train.callbacks.metric_tracking import SaveBest as SaveBest
    from allranks.train.callbacks.metric_tracking import SaveEvery as SaveEvery
    from allranks.train.callbacks.plots_and_models import LogModel as LogModel
    from allranks.train.callbacks.plots_and_models import WritePlots as WritePlots

_HOMES = {
    "BestTracker": "metric_tracking",
    "Callback": "base",
    "Callbacks": "base",
    "Cosine": "lr_schedules",
    "Cyclic": "lr_schedules",
    "EVENTS": "base",
    "EarlyStopping": "metric_tracking",
    "GradientMonitor": "gradient_monitor",
    "LRSchedule": "lr_schedules",
    "LogModel": "plots_and_models",
    "R3Dataset": "adaptive_sampling",
    "ReduceOnPlateau": "metric_tracking",
    "Resample": "adaptive_sampling",
    "SaveBest": "metric_tracking",
    "SaveEvery": "metric_tracking",
    "StepDecay": "lr_schedules",
    "TrainerView": "base",
    "When": "base",
    "WritePlots": "plots_and_models",
}

__all__ = [*_HOMES]
__getattr__ = names_from(__name__, _HOMES)
