"""Callbacks: code of the user's that the training calls at named moments.

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

At every event callbacks are called in the order of the list, and the trainer's own (early stopping,
saving the best) after the user's: what a user's callback logs or changes is seen by them. All hooks
run on all ranks, in the same order, so a hook may call collectives. What a hook asks to be saved is saved
when the present step or epoch is whole and all of its hooks are done.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from allranks.errors import UsageError, did_you_mean
from allranks.train.callbacks.view import TrainerView
from allranks.train.plain import plain

EVENTS = (
    "fit_start", "epoch_start", "batch_start", "batch_end", "before_step", "step_end", "log",
    "val_start", "val_end", "epoch_end", "checkpoint", "fit_end", "test_start", "test_end",
    "exception",
)  # fmt: skip


class Callback:
    """Override the hooks you need: those left alone cost nothing, not even a call."""

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
        """These values were handed to the loggers."""

    def on_val_start(self, trainer: TrainerView) -> None:
        """Before validation."""

    def on_val_end(self, trainer: TrainerView) -> None:
        """``trainer.metrics`` has the new ``val_`` values."""

    def on_epoch_end(self, trainer: TrainerView) -> None:
        """``trainer.metrics`` has the epoch's values; validation, if it was due, is done."""

    def on_checkpoint(self, trainer: TrainerView) -> None:
        """A checkpoint is on the disk. It is written beside the training, so this comes at the next save
        or at the end; with ``checkpoint_async=False`` at once.
        """

    def on_fit_end(self, trainer: TrainerView) -> None:
        """After the last step, however it came to be the last."""

    def on_test_start(self, trainer: TrainerView) -> None:
        """Before the test data."""

    def on_test_end(self, trainer: TrainerView) -> None:
        """``trainer.metrics`` has the ``test_`` values."""

    def on_exception(self, trainer: TrainerView, error: BaseException) -> None:
        """The training fails with this error, on this rank."""

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to know: plain containers, numbers and tensors."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up what ``state_dict`` gave."""

    def listens(self, event: str) -> bool:
        """Whether the hook of this event does anything."""
        hook = getattr(self, f"on_{event}")
        return getattr(hook, "__func__", hook) is not getattr(Callback, f"on_{event}")


class When(Callback):
    """A function as a callback: ``When("epoch_end", show, every=5)``.

    Called with the trainer (and with the values at "log", the error at "exception") each ``every``-th
    time the event comes, if ``condition(trainer)`` is true then.
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
        setattr(self, f"on_{event}", self._called)

    def _called(self, trainer: TrainerView, *args: Any) -> None:
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
    """The dispatcher. It looks once which hooks are overridden and calls only those."""

    def __init__(self, callbacks: Iterable[Callback]) -> None:
        self.all = [_checked(each) for each in callbacks]
        self._hooks: dict[str, list[Callable[..., None]]] = {
            event: [getattr(each, f"on_{event}") for each in self.all if each.listens(event)]
            for event in EVENTS
        }

    def has(self, event: str) -> bool:
        """Whether anybody listens; the loop leaves the call out otherwise."""
        return bool(self._hooks[event])

    def fire(self, event: str, trainer: Any, *args: Any) -> None:
        """Call the hooks of this event, in list order."""
        for hook in self._hooks[event]:
            if event == "exception":
                _call_despite(hook, trainer, *args)
            else:
                hook(trainer, *args)

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """The states by class name and place among that class: "EarlyStopping.0"."""
        states = ((key, each.state_dict()) for key, each in self._keyed())
        return {
            key: plain(state, f"The state of {key.rpartition('.')[0]}")
            for key, state in states
            if state
        }

    def load_state_dict(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Each callback takes its own state; one that is new starts afresh."""
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
    """The event's name without a leading ``on_``, or an error that names the nearest."""
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
        f"callbacks: {kind} {name} is no callback. Give objects of subclasses of Callback; "
        "for a function: When('epoch_end', function)."
    )


def _call_despite(hook: Callable[..., None], trainer: Any, *args: Any) -> None:
    try:
        hook(trainer, *args)
    except Exception as error:  # noqa: BLE001  the training's own error must stay the one that is seen
        warnings.warn(f"{hook!r} failed: {type(error).__name__}: {error}", stacklevel=3)
