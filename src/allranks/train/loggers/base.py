"""The interface of loggers, which write metrics on rank 0 only.

``Loggers`` calls all of them and keeps the training alive when one fails: a full disk or a lost server
must not end a run of twelve hours.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from allranks.core.background_thread import background_thread


@dataclass(frozen=True)
class RunInfo:
    """What a logger gets at its start."""

    folder: Path
    """The run folder; it exists."""
    name: str
    """The run's name, the same for all runs of one script unless the user gave another."""
    hyperparams: Mapping[str, Any]
    """The user's hyperparameters."""
    resumed: bool
    """Whether this continues a run: a logger then appends."""
    world_size: int
    """How many ranks train."""
    step: int = 0
    """The first step: not 0 after a resumption."""
    logged: Mapping[str, int] | None = None
    """By logger, how many lines of its file precede ``step``: the rest is of a lost attempt."""
    undone: Path | None = None
    """The folder for the lines of the lost attempt; None: the run folder."""
    fit: int = 1
    """The number of this fit in the script: each counts its steps from the start."""


class Logger(ABC):
    """Writes metrics somewhere. Only ``log`` must be implemented."""

    name: ClassVar[str]
    """Its name in ``TrainConfig.loggers``."""
    keeps_trying: ClassVar[bool] = False
    """Whether it is called again after it failed."""

    def start(self, run: RunInfo) -> None:  # noqa: B027
        """Open files or connections."""

    @abstractmethod
    def log(self, values: Mapping[str, float], *, step: int, epoch: int, kind: str) -> None:
        """Write values; ``kind`` is "train", "val", "test" or "epoch"."""

    def figure(self, name: str, figure: Any, *, step: int) -> None:  # noqa: B027
        """Store a figure, if possible."""

    def model(self, model: Any) -> None:  # noqa: B027
        """Store the trained model: a module, or its state dict when it is sharded."""

    def flush(self) -> None:  # noqa: B027
        """Write what is buffered: a checkpoint or a validation follows."""

    def position(self) -> int | None:
        """Return the lines written so far, for loggers whose file is truncated by a resumption."""
        return None

    def close(self, status: str) -> None:  # noqa: B027
        """Write what is left; ``status`` is "finished", "stopped", "failed" or "interrupted" (another
        attempt follows).
        """


class GuardedLogger(Logger):
    """A logger whose failure is reported once and does not end the training."""

    def __init__(self, inner: Logger, warn: Callable[[str], Any]) -> None:
        self.inner, self._warn = inner, warn
        self.failed = self._reported = self._closing = False

    def start(self, run: RunInfo) -> None:
        self._try(self.inner.start, run)

    def log(self, values: Mapping[str, float], *, step: int, epoch: int, kind: str) -> None:
        if self.failed:
            return
        try:
            self.inner.log(values, step=step, epoch=epoch, kind=kind)
        except Exception as error:  # noqa: BLE001  any backend may fail in any way; see _report
            self._report(error)

    def figure(self, name: str, figure: Any, *, step: int) -> None:
        self._try(self.inner.figure, name, figure, step=step)

    def model(self, model: Any) -> None:
        self._try(self.inner.model, model)

    def flush(self) -> None:
        self._try(self.inner.flush)

    def position(self) -> int | None:
        return None if self.failed else self.inner.position()

    def close(self, status: str) -> None:
        self._closing = True
        self._try(self.inner.close, status)

    def _try(self, call: Callable[..., None], *args: Any, **values: Any) -> None:
        if self.failed:
            return
        try:
            call(*args, **values)
        except Exception as error:  # noqa: BLE001  any backend may fail in any way; see _report
            self._report(error)

    def _report(self, error: Exception) -> None:
        """Report the failure once, and close a logger that does not retry."""
        self.failed = not self.inner.keeps_trying
        if self.failed and not self._closing:
            # In a thread: waiting for a lost server would hold up the training.
            background_thread(self._release, "allranks logger").start()
        if self._reported:
            return
        self._reported = True
        name = getattr(self.inner, "name", type(self.inner).__name__)
        then = "It is not used any more." if self.failed else "It keeps trying."
        self._warn(f"The {name} logger failed: {type(error).__name__}: {error}. {then}")

    def _release(self) -> None:
        """Release the files and threads of a logger that is not used any more."""
        with suppress(Exception):  # its failure was reported
            self.inner.close("failed")


class Loggers:
    """All loggers of the run as one; iterating gives each, as a `GuardedLogger`."""

    def __init__(
        self, loggers: Iterable[Logger] = (), warn: Callable[[str], Any] | None = None
    ) -> None:
        self._all = [GuardedLogger(each, warn or _warn) for each in loggers]

    def __iter__(self) -> Iterator[GuardedLogger]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def start(self, run: RunInfo) -> None:
        """Start them all."""
        for each in self._all:
            each.start(run)

    def log(self, values: Mapping[str, float], *, step: int, epoch: int, kind: str) -> None:
        """Write values everywhere."""
        for each in self._all:
            each.log(values, step=step, epoch=epoch, kind=kind)

    def figure(self, name: str, figure: Any, *, step: int) -> None:
        """Store a figure everywhere."""
        for each in self._all:
            each.figure(name, figure, step=step)

    def model(self, model: Any) -> None:
        """Store the model everywhere."""
        for each in self._all:
            each.model(model)

    def flush(self) -> None:
        """Write what is buffered everywhere."""
        for each in self._all:
            each.flush()

    def positions(self) -> dict[str, int]:
        """Return how many lines each logger has written; what is buffered is written first."""
        self.flush()
        found = {each.inner.name: each.position() for each in self._all}
        return {name: count for name, count in found.items() if count is not None}

    def close(self, status: str) -> None:
        """Close them all."""
        for each in self._all:
            each.close(status)


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=2)
