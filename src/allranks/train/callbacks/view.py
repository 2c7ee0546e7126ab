"""What a callback may use of the trainer: the names that stay as they are between versions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol


class WorldView(Protocol):
    """Which process this is."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def is_main(self) -> bool: ...


class TrainerView(Protocol):
    """The trainer as callbacks see it. Hooks run on every rank; loggers are there on rank 0 only."""

    @property
    def epoch(self) -> int:
        """1 during the first epoch, 0 before."""

    @property
    def step(self) -> int:
        """Optimizer steps done."""

    @property
    def metrics(self) -> Mapping[str, float]:
        """The latest values, the same on all ranks: train_loss, val_loss, lr, ..."""

    @property
    def model(self) -> Any:
        """The user's own module."""

    @property
    def optimizer(self) -> Any:
        """As the user gave it: one, a list or a dict."""

    @property
    def optimizers(self) -> list[Any]:
        """All of them, as a list."""

    @property
    def config(self) -> Any:
        """The TrainConfig."""

    @property
    def world(self) -> WorldView: ...

    @property
    def device(self) -> Any: ...

    @property
    def folder(self) -> Path:
        """The run folder."""

    @property
    def loggers(self) -> Iterable[Any]:
        """Empty except on rank 0."""

    @property
    def batch(self) -> Any:
        """The present batch, in batch hooks."""

    @property
    def loss(self) -> Any:
        """The last micro batch's loss, detached. Reading its value waits for the device."""

    def stop(self, reason: str) -> None:
        """End the training after this step; call it on every rank."""

    def log(self, name: str, value: float) -> None:
        """Add a value to the metrics and to the loggers' next write."""

    def say(self, text: str) -> None:
        """Print a line on rank 0, without breaking the progress bar."""

    def save_checkpoint(self, name: str | None = None) -> Any:
        """Save, under this name if one is given, when the present step or epoch is whole and all of its
        hooks are done; call it on every rank.
        """
