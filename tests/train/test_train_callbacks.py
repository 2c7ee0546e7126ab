"""Callbacks with a stand-in trainer: the dispatcher, and the decisions taken from metrics."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from allranks.errors import UsageError
from allranks.train.callbacks import (
    EVENTS,
    BestTracker,
    Callback,
    Callbacks,
    EarlyStopping,
    SaveBest,
    SaveEvery,
    When,
)


class StandIn:
    """What callbacks see of a trainer, without training."""

    def __init__(self, model: Any = None, optimizers: Any = (), folder: Path | None = None) -> None:
        self.epoch = self.step = 0
        self.metrics: dict[str, float] = {}
        self.model, self.optimizers, self.folder = model, list(optimizers), folder
        self.optimizer = self.optimizers[0] if self.optimizers else None
        self.config = SimpleNamespace(warmup_steps=0)
        self.world = SimpleNamespace(rank=0, size=1, is_main=True)
        self.device, self.batch, self.loss = "cpu", None, None
        self.loggers: list[Any] = []
        self.stopped: list[str] = []
        self.saved: list[tuple[int, str | None]] = []
        self.said: list[str] = []
        self.logged: dict[str, float] = {}
        self.stop, self.say = self.stopped.append, self.said.append

    def save_checkpoint(self, name: str | None = None) -> None:
        self.saved.append((self.step, name))

    def log(self, name: str, value: float) -> None:
        self.logged[name] = value


def validate(callback: Callback, trainer: StandIn, *values: float, name: str = "val_loss") -> None:
    """One epoch per value, each with its validation."""
    callbacks = Callbacks([callback])
    for value in values:
        trainer.epoch += 1
        trainer.step += 10
        trainer.metrics[name] = value
        callbacks.fire("val_end", trainer)
        callbacks.fire("epoch_end", trainer)


class Notes(Callback):
    def __init__(self, name: str, notes: list[str]) -> None:
        self.name, self.notes = name, notes

    def on_fit_start(self, trainer: Any) -> None:
        self.notes.append(f"{self.name} start")

    def on_log(self, trainer: Any, values: Any) -> None:
        self.notes.append(f"{self.name} {values}")


def test_every_event_has_a_hook_and_none_is_called_when_nobody_listens() -> None:
    assert all(callable(getattr(Callback, f"on_{event}")) for event in EVENTS)
    callbacks = Callbacks([Callback()])
    assert not any(callbacks.has(event) for event in EVENTS)
    assert EVENTS.index("batch_end") < EVENTS.index("before_step") < EVENTS.index("step_end")


def test_hooks_are_called_in_list_order_with_their_arguments() -> None:
    notes: list[str] = []
    callbacks = Callbacks([Notes("a", notes), Callback(), Notes("b", notes)])
    assert callbacks.has("log")
    assert not callbacks.has("step_end")
    callbacks.fire("fit_start", StandIn())
    callbacks.fire("log", StandIn(), {"x": 1})
    assert notes == ["a start", "b start", "a {'x': 1}", "b {'x': 1}"]


def test_an_error_in_a_hook_is_the_users_to_see() -> None:
    callbacks = Callbacks([When("epoch_end", lambda trainer: 1 / 0)])
    with pytest.raises(ZeroDivisionError):
        callbacks.fire("epoch_end", StandIn())


def test_a_failing_exception_hook_does_not_hide_the_error_from_the_next() -> None:
    seen: list[BaseException] = []
    callbacks = Callbacks(
        [
            When("exception", lambda trainer, error: 1 / 0),
            When("exception", lambda trainer, error: seen.append(error)),
        ]
    )
    error = RuntimeError("the real one")
    with pytest.warns(UserWarning, match="ZeroDivisionError"):
        callbacks.fire("exception", StandIn(), error)
    assert seen == [error]


@pytest.mark.parametrize("wrong", [print, EarlyStopping, "early"])
def test_what_is_no_callback_is_refused(wrong: Any) -> None:
    with pytest.raises(UsageError, match="When"):
        Callbacks([wrong])


def test_when_calls_every_so_often_and_on_condition() -> None:
    calls: list[int] = []
    when = When(
        "epoch_end", lambda trainer: calls.append(trainer.epoch), every=2,
        condition=lambda trainer: trainer.epoch > 2,
    )  # fmt: skip
    callbacks = Callbacks([when])
    assert callbacks.has("epoch_end")
    assert not callbacks.has("fit_end")
    trainer = StandIn()
    for trainer.epoch in range(1, 9):
        callbacks.fire("epoch_end", trainer)
    assert calls == [4, 6, 8]


def test_when_goes_on_counting_after_a_resume_and_survives_pickling() -> None:
    first = Callbacks([When("step_end", print, every=3)])
    first.fire("step_end", StandIn())
    second = Callbacks([pickle.loads(pickle.dumps(When("step_end", print, every=3)))])
    second.load_state_dict(first.state_dict())
    assert second.state_dict() == {"When.0": {"times": 1}}
    assert second.has("step_end")


def test_an_unknown_event_is_named_with_the_one_meant() -> None:
    with pytest.raises(UsageError, match="Did you mean 'epoch_end'"):
        When("epoch_ends", print)
    assert When("on_epoch_end", print).event == "epoch_end"


def test_states_go_to_the_same_class_in_the_same_place() -> None:
    old = [EarlyStopping(patience=9), BestTracker("a"), BestTracker("b")]
    old[1].best, old[2].best = 1.0, 2.0
    new = [When("fit_end", print), BestTracker("a"), BestTracker("b"), EarlyStopping()]
    Callbacks(new).load_state_dict(Callbacks(old).state_dict())
    assert [new[1].best, new[2].best] == [1.0, 2.0]


@pytest.mark.parametrize(
    ("mode", "values", "best", "epoch"),
    [
        ("min", [3.0, 1.0, 2.0], 1.0, 2),
        ("max", [-3.0, -1.0, -2.0], -1.0, 2),
        ("min", [math.nan, 5.0, math.nan], 5.0, 2),
        ("min", [math.inf, 5.0], 5.0, 2),
        ("max", [-math.inf], None, 0),
    ],
)
def test_the_best_is_found_in_both_modes(
    mode: str, values: list[float], best: float | None, epoch: int
) -> None:
    tracker = BestTracker("val_loss", mode)
    validate(tracker, StandIn(), *values)
    assert (tracker.best, tracker.best_epoch, tracker.best_step) == (best, epoch, 10 * epoch)


def test_early_stopping_waits_and_says_why() -> None:
    trainer = StandIn()
    stopping = EarlyStopping("val_loss", patience=2, min_delta=0.1)
    validate(stopping, trainer, 1.0, 0.95, 0.8, 0.75)
    assert trainer.stopped == []
    validate(stopping, trainer, 0.71)
    assert len(trainer.stopped) == 1
    assert "val_loss" in trainer.stopped[0]
    assert "0.8 in epoch 3" in trainer.stopped[0]


def test_early_stopping_with_more_being_better() -> None:
    trainer = StandIn()
    validate(EarlyStopping("val_acc", 2, "max"), trainer, 0.1, 0.2, 0.3, name="val_acc")
    assert trainer.stopped == []
    validate(EarlyStopping("val_acc", 2, "max"), trainer, 0.3, 0.2, 0.1, name="val_acc")
    assert trainer.stopped


def test_early_stopping_looks_once_an_epoch_whatever_the_metric() -> None:
    for name in ("val_loss", "train_loss"):
        stopping = EarlyStopping(name, patience=3)
        validate(stopping, StandIn(), 1.0, 1.0, 1.0, name=name)
        assert stopping.waited == 2


def test_nan_is_no_progress_and_may_stop_at_once() -> None:
    trainer = StandIn()
    validate(EarlyStopping(patience=2), trainer, math.nan)
    assert trainer.stopped == []
    validate(EarlyStopping(patience=2), trainer, math.nan, math.nan)
    assert "never" in trainer.stopped[0]
    validate(EarlyStopping(patience=9, stop_on_nan=True), trainer, 1.0, math.nan)
    assert "NaN" in trainer.stopped[1]


def test_a_criterion_overrules_the_mode() -> None:
    calls: list[tuple[float, float, float]] = []

    def bigger(current: float, best: float, epsilon: float) -> bool:
        calls.append((current, best, epsilon))
        return current > best + epsilon

    tracker = BestTracker("val_loss", "min", 0.5, bigger)
    validate(tracker, StandIn(), 1.0, 1.2, 2.0)
    assert tracker.best == 2.0
    assert calls == [(1.2, 1.0, 0.5), (2.0, 1.0, 0.5)]


def test_patience_is_kept_over_a_resume() -> None:
    first = EarlyStopping(patience=3)
    validate(first, StandIn(), 1.0, 2.0, 2.0)
    second, trainer = EarlyStopping(patience=3), StandIn()
    second.load_state_dict(first.state_dict())
    validate(second, trainer, 1.5)
    assert trainer.stopped


def test_a_mistyped_metric_is_named_with_the_one_meant() -> None:
    trainer = StandIn()
    trainer.metrics = {"val_loss": 1.0, "train_loss": 1.0}
    with pytest.raises(UsageError, match=r"'val_los'.*Did you mean 'val_loss'"):
        Callbacks([EarlyStopping("val_los")]).fire("val_end", trainer)


def test_wrong_arguments_are_refused() -> None:
    for make in (
        lambda: EarlyStopping(mode="least"), lambda: EarlyStopping(patience=0), lambda: SaveEvery(),
        lambda: SaveEvery(epochs=0), lambda: When("fit_end", print, every=0),
    ):  # fmt: skip
        with pytest.raises(UsageError):
            make()


def test_the_best_is_saved_after_it_is_noted() -> None:
    trainer = StandIn()
    best = SaveBest("val_loss")
    noted: list[float | None] = []
    trainer.save_checkpoint = lambda name: noted.append(best.best)
    validate(best, trainer, 3.0, 4.0, 2.0)
    assert noted == [3.0, 2.0]


def test_periodic_checkpoints_have_no_name() -> None:
    trainer = StandIn()
    callbacks = Callbacks([SaveEvery(epochs=2, steps=3)])
    for trainer.step in range(1, 9):
        callbacks.fire("step_end", trainer)
        if trainer.step % 4 == 0:
            trainer.epoch += 1
            callbacks.fire("epoch_end", trainer)
    assert trainer.saved == [(3, None), (6, None), (8, None)]


def test_saving_by_epoch_costs_nothing_per_step() -> None:
    assert not Callbacks([SaveEvery(epochs=1)]).has("step_end")
    assert Callbacks([SaveEvery(steps=1)]).has("step_end")
