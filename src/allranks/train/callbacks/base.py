"""Callbacks: the user's code, called by the training at named events.

    fit_start
      epoch_start
        batch_start  batch_end          every batch
        before_step  step_end           every optimizer step; before_step still has the gradients
        log                             metrics are written
        val_start  val_end              validation
      epoch_end
      checkpoint                        one is on the disk
    fit_end
    test_start  test_end
    exception                           the training fails with an error

At every event callbacks are called in the order of the list, and the built-in ones (early stopping, saving
the best) after the user's, so that they see what the user's logged or changed. All hooks run on all ranks, in
the same order, so a hook may call collectives. A checkpoint that a hook requests is saved when the current step
or epoch is complete and all of its hooks are done.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from allranks.errors import UsageError, did_you_mean
from allranks.train.plain_values import plain

EVENTS = (
    "fit_start", "epoch_start", "batch_start", "batch_end", "before_step", "step_end", "log",
    "val_start", "val_end", "epoch_end", "checkpoint", "fit_end", "test_start", "test_end",
    "exception",
)  # fmt: skip


class Callback:
    """Override the hooks you need: others cost nothing, not even a call."""

    def on_fit_start(self, trainer: TrainerView) -> None:
        """Before the first step; after a resume, with the resumed step and epoch."""

    def on_epoch_start(self, trainer: TrainerView) -> None:
        """Before the first batch of an epoch."""

    def on_batch_start(self, trainer: TrainerView) -> None:
        """``trainer.batch`` is on the device; forward comes next."""

    def on_batch_end(self, trainer: TrainerView) -> None:
        """After forward and backward of one batch."""

    def on_before_step(self, trainer: TrainerView) -> None:
        """Gradients are complete; the optimizer comes next."""

    def on_step_end(self, trainer: TrainerView) -> None:
        """After the optimizer's step."""

    def on_log(self, trainer: TrainerView, values: Mapping[str, float]) -> None:
        """After these values were given to the loggers."""

    def on_val_start(self, trainer: TrainerView) -> None:
        """Before validation."""

    def on_val_end(self, trainer: TrainerView) -> None:
        """``trainer.metrics`` has the new ``val_`` values."""

    def on_epoch_end(self, trainer: TrainerView) -> None:
        """``trainer.metrics`` has the epoch's values; validation, if it was due, is done."""

    def on_checkpoint(self, trainer: TrainerView) -> None:
        """After a checkpoint was written. It is written in the background, so this is called at the next
        save or at the end; with ``checkpoint_async=False`` at once.
        """

    def on_fit_end(self, trainer: TrainerView) -> None:
        """After the last step, also when the training was stopped early."""

    def on_test_start(self, trainer: TrainerView) -> None:
        """Before the test data."""

    def on_test_end(self, trainer: TrainerView) -> None:
        """``trainer.metrics`` has the ``test_`` values."""

    def on_exception(self, trainer: TrainerView, error: BaseException) -> None:
        """The training failed with this error, on this rank."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs: plain containers, numbers and tensors."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""

    def listens(self, event: str) -> bool:
        """Whether the hook of this event is overridden."""
        hook = getattr(self, f"on_{event}")
        return getattr(hook, "__func__", hook) is not getattr(Callback, f"on_{event}")


class When(Callback):
    """A function as a callback: ``When("epoch_end", show, every=5)``.

    Called with the trainer (and with the values at "log", the error at "exception") every ``every``-th
    time the event occurs, if ``condition(trainer)`` is true.
    """

    def __init__(
        self,
        event: str,
        call: Callable[..., Any],
        every: int = 1,
        condition: Callable[[Any], bool] | None = None,
    ) -> None:
        event = known_event(event)
        if every < 1:
            raise UsageError(f"When('{event}', every={every}): must be at least 1.")
        self.event, self.call, self.every, self.condition = event, call, every, condition
        self.times = 0
        setattr(self, f"on_{event}", self._call)

    def _call(self, trainer: TrainerView, *args: Any) -> None:
        self.times += 1
        if self.times % self.every:
            return
        if self.condition is None or self.condition(trainer):
            self.call(trainer, *args)

    def state_dict(self) -> dict[str, Any]:
        return {"times": self.times}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.times = int(state["times"])


class Callbacks:
    """Calls the hooks that are overridden."""

    def __init__(self, callbacks: Iterable[Callback]) -> None:
        self.all = [_checked(each) for each in callbacks]
        self._hooks: dict[str, list[Callable[..., None]]] = {
            event: [getattr(each, f"on_{event}") for each in self.all if each.listens(event)]
            for event in EVENTS
        }

    def has(self, event: str) -> bool:
        """Whether any callback has a hook for this event."""
        return bool(self._hooks[event])

    def fire(self, event: str, trainer: Any, *args: Any) -> None:
        """Call the hooks of this event, in list order."""
        for hook in self._hooks[event]:
            if event == "exception":
                _call_and_warn(hook, trainer, *args)
            else:
                hook(trainer, *args)

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """Return the states by class name and position in that class: "EarlyStopping.0"."""
        states = ((key, each.state_dict()) for key, each in self._keyed())
        return {
            key: plain(state, f"The state of {key.rpartition('.')[0]}")
            for key, state in states
            if state
        }

    def load_state_dict(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore each callback's state; one that is new keeps its own."""
        for key, each in self._keyed():
            if key in state:
                each.load_state_dict(state[key])

    def _keyed(self) -> Iterable[tuple[str, Callback]]:
        places: Counter[str] = Counter()
        for each in self.all:
            name = type(each).__name__
            yield f"{name}.{places[name]}", each
            places[name] += 1


def known_event(event: str) -> str:
    """Return the event's name without ``on_``, or raise with the most similar name."""
    name = event.removeprefix("on_")
    if name in EVENTS:
        return name
    hint = did_you_mean(name, EVENTS)
    raise UsageError(f"There is no event '{event}': the events are {', '.join(EVENTS)}.{hint}")


def _checked(callback: object) -> Callback:
    if isinstance(callback, Callback):
        return callback
    kind = "the class" if isinstance(callback, type) else "an object of type"
    name = callback.__name__ if isinstance(callback, type) else type(callback).__name__
    raise UsageError(
        f"callbacks: {kind} {name} is not a Callback. Give objects of subclasses of Callback; "
        "for a function: When('epoch_end', function)."
    )


def _call_and_warn(hook: Callable[..., None], trainer: Any, *args: Any) -> None:
    try:
        hook(trainer, *args)
    except Exception as error:  # noqa: BLE001  the training's own error must stay the one that is seen
        warnings.warn(f"{hook!r} failed: {type(error).__name__}: {error}", stacklevel=3)


class WorldView(Protocol):
    """Which process this is."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def is_main(self) -> bool: ...


class TrainerView(Protocol):
    """What callbacks may use of the trainer. Hooks run on every rank; loggers exist on rank 0 only."""

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
        """The current batch, in batch hooks."""

    @property
    def loss(self) -> Any:
        """The loss of the last batch, detached. Reading its value waits for the device."""

    def stop(self, reason: str) -> None:
        """End the training after this step; any rank may call it."""

    def log(self, name: str, value: float) -> None:
        """Add a value to the metrics and to the loggers' next write."""

    def say(self, text: str) -> None:
        """Print a line on rank 0, without breaking the progress bar."""

    def save_checkpoint(self, name: str | None = None) -> Any:
        """Save, under this name if one is given, when the current step or epoch is complete and all of its
        hooks are done; call it on every rank.
        """
