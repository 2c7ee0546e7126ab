"""Where metrics go. One logger per file; they live on rank 0 only.

``Loggers`` hands everything to all of them and keeps the training alive when one fails: a full disk or
a server that is gone must not end a run of twelve hours.
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
    """What a logger is told of the run at its start."""

    folder: Path
    """The run folder; it exists."""
    name: str
    """The run's name, the same for all runs of one script unless the user gave another."""
    hyperparams: Mapping[str, Any]
    """The user's, to be written down with the run."""
    resumed: bool
    """Whether this continues a run: a logger then adds to what is there."""
    world_size: int
    """How many ranks train."""
    step: int = 0
    """Where it begins: not 0 when it continues in the middle."""
    logged: Mapping[str, int] | None = None
    """By logger, what of its file is before ``step``: the rest is of an attempt that was lost."""
    undone: Path | None = None
    """The folder for what was lost; None is the run folder."""
    fit: int = 1
    """Which training of the script it is: each counts its steps from the start."""


class Logger(ABC):
    """One place for metrics. Only ``log`` must be written; the others do nothing unless overridden."""

    name: ClassVar[str]
    """What ``TrainConfig.loggers`` calls it."""
    keeps_trying: ClassVar[bool] = False
    """Whether it is called again after it failed."""

    def start(self, run: RunInfo) -> None:  # noqa: B027
        """Open files or connections."""

    @abstractmethod
    def log(self, values: Mapping[str, float], *, step: int, epoch: int, kind: str) -> None:
        """Write values; ``kind`` is "train", "val", "test" or "epoch"."""

    def figure(self, name: str, figure: Any, *, step: int) -> None:  # noqa: B027
        """Keep a figure, where the place can."""

    def model(self, model: Any) -> None:  # noqa: B027
        """Keep the trained model: a module, or its state dict where no rank has the module whole."""

    def flush(self) -> None:  # noqa: B027
        """Write what waits: a checkpoint or a validation is about to begin."""

    def position(self) -> int | None:
        """Lines written so far, for loggers whose file is cut after a resumption."""
        return None

    def close(self, status: str) -> None:  # noqa: B027
        """Write what is left; ``status`` is "finished", "stopped", "failed" or "interrupted" (another
        attempt goes on).
        """


class Guarded(Logger):
    """A logger whose failures are reported once and then cost the logger, not the training."""

    def __init__(self, inner: Logger, warn: Callable[[str], Any]) -> None:
        self.inner, self._warn = inner, warn
        self.failed = self._told = self._closing = False

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
        """The training is worth more than its log: say so once and go on."""
        self.failed = not self.inner.keeps_trying
        if self.failed and not self._closing:
            # Not here: whoever waits for a server that is gone holds up the training.
            background_thread(self._let_go, "allranks logger").start()
        if self._told:
            return
        self._told = True
        name = getattr(self.inner, "name", type(self.inner).__name__)
        then = "It is left out from here on." if self.failed else "It keeps trying."
        self._warn(f"The {name} logger failed: {type(error).__name__}: {error}. {then}")

    def _let_go(self) -> None:
        """A logger that is left out holds no file and no thread."""
        with suppress(Exception):  # that it failed was told
            self.inner.close("failed")


class Loggers:
    """All loggers of the run as one; iterating gives each, guarded."""

    def __init__(
        self, loggers: Iterable[Logger] = (), warn: Callable[[str], Any] | None = None
    ) -> None:
        self._all = [Guarded(each, warn or _warn) for each in loggers]

    def __iter__(self) -> Iterator[Guarded]:
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
        """Keep a figure everywhere."""
        for each in self._all:
            each.figure(name, figure, step=step)

    def model(self, model: Any) -> None:
        """Keep the model everywhere."""
        for each in self._all:
            each.model(model)

    def flush(self) -> None:
        """Write what waits everywhere."""
        for each in self._all:
            each.flush()

    def positions(self) -> dict[str, int]:
        """By logger, how many lines it has written; what waits is written first."""
        self.flush()
        found = {each.inner.name: each.position() for each in self._all}
        return {name: count for name, count in found.items() if count is not None}

    def close(self, status: str) -> None:
        """Close them all."""
        for each in self._all:
            each.close(status)


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=2)
