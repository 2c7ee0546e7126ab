"""What the metrics of a run tell: the latest, the typical, the best, and a loss that is lost.

A script may train several times in one run, each from step 0 on: losses are those of the last time.
"""

from __future__ import annotations

from statistics import median
from typing import Any

from allranks.observe.view.fit_steps import fit_start
from allranks.observe.view.model import PHASES, RunView
from allranks.observe.view.run_source import Columns, RunSource

_SHOWN = (
    "train_loss", "val_loss", "samples_per_second", "tokens_per_second", "mfu", "flops_per_second",
    "step_seconds", "lr", "grad_norm",
)  # fmt: skip
"""Metrics that come first; the others follow by name."""
_LOSSES = {"train_loss": "train", "val_loss": "val"}
"""By the table that has them."""


def latest(look: RunView) -> dict[str, float]:
    """The latest of each metric, without what is shown as the phases of a step."""
    first = [name for name in _SHOWN if name in look.values]
    rest = sorted(name for name in look.values if name not in _SHOWN)
    hidden = {f"{phase}_seconds" for phase in PHASES} | {"epoch_seconds"}
    return {name: look.values[name] for name in [*first, *rest] if name not in hidden}


def typical(source: RunSource) -> dict[str, float]:
    """Medians over the run of how fast it was."""
    names = ("samples_per_second", "tokens_per_second", "mfu", "step_seconds")
    known = {name: _known(source.train[name]) for name in names}
    return {name: median(values) for name, values in known.items() if values}


def best(source: RunSource) -> dict[str, float]:
    """The lowest of each loss."""
    since = fit_start(source)
    known = {name: _known(_since(source, name, since)[1]) for name in _LOSSES}
    return {name: min(values) for name, values in known.items() if values}


def diverged(source: RunSource) -> dict[str, int]:
    """The losses that are NaN or infinite to the end, each with the step since which it is."""
    since, found = fit_start(source), dict[str, int]()
    for name, kind in _LOSSES.items():
        if name in source.nonfinite.get(kind, ()):
            steps, values = _since(source, name, since)
            finite = max((at for at, value in enumerate(values) if value is not None), default=-1)
            lost = _known(steps[finite + 1 :])
            found |= {name: int(lost[0])} if lost else {}
    return found


def _since(source: RunSource, name: str, since: float) -> tuple[list[Any], list[Any]]:
    """The steps and the values of a loss."""
    columns: Columns = getattr(source, _LOSSES[name])
    begin = columns.place(since)
    return columns.part("step", begin), columns.part(name, begin)


def _known(values: list[Any]) -> list[float]:
    return [value for value in values if value is not None]
