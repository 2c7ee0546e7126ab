"""What surrounds a training: run folder, loggers, bar, checkpoints; taken down however it ends."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allranks.checkpoint.store import Store
from allranks.data.agree import gathered
from allranks.errors import Interrupted, UsageError
from allranks.leaving.deadline import shared
from allranks.runs.files import read_json, write_json
from allranks.train import loggers as sinks
from allranks.train import resuming
from allranks.train.assembly import make_fit
from allranks.train.callbacks.base import Callbacks
from allranks.train.finding import find, note_finished
from allranks.train.folder import checkpoint_folder, lost_attempt, script_name, write_settings
from allranks.train.loggers.base import Loggers, RunInfo
from allranks.train.loggers.undo import lines_there
from allranks.train.loop import Fit, Loop
from allranks.train.refusals import check_fit
from allranks.train.saving import Saving
from allranks.train.session import share_result

if TYPE_CHECKING:
    from allranks.train.trainer import Trainer


@contextmanager
def fitting(trainer: Trainer, train: Any, val: Any) -> Iterator[Loop | None]:
    """All that `fit` needs; loggers, bar and workers are closed however it ends.

    None where the training had finished before: its state is loaded, and there is nothing to do.
    """
    engine = trainer.engine()
    feed = engine.feed(train, training=True)
    val_feed = None if val is None else engine.feed(val, training=False)
    check_fit(trainer, feed, val_feed)
    fit = make_fit(trainer, engine, feed, val_feed)
    store = Store(checkpoint_folder(trainer.folder))
    begun = Begun.before(store) if trainer.world.is_main else Begun()
    trainer._saving = Saving(trainer, fit, store)
    if trainer.config.checkpoint:
        trainer._saving.take_over({"logged": begun.logged})
        if trainer.config.resume is False:
            share_result(lambda: _set_aside(trainer, store), trainer.world, trainer.device)
    gone_on = _resume(trainer, fit, store, train, val)
    trainer._loop = loop = Loop(trainer, fit)
    if gone_on is not None and gone_on.is_over:
        with _unwatched(trainer, fit, gone_on):
            yield None
        return
    logged = begun.logged if begun.was_there else None
    if gone_on is not None and gone_on.own:
        logged = gone_on.logged
    _open_sink(trainer, resumed=gone_on is not None or begun.was_there, logged=logged)
    if trainer.world.is_main:
        _greet(trainer, fit, gone_on is not None)
        _note_start(fit)
    with loop.watching(), _watched(trainer, fit):
        yield loop


def _set_aside(trainer: Trainer, store: Store) -> None:
    """What an earlier start saved must not be taken for this one's; nothing of it is deleted."""
    try:
        aside = store.set_aside()
    except OSError as error:
        raise UsageError(
            f"resume=False: the checkpoints in {store.folder} cannot be moved aside: {error.strerror}.\n"
            "Move them yourself, or give another run folder."
        ) from None
    if aside is not None:
        trainer.say(f"resume=False: the checkpoints of an earlier start were moved to {aside}.")


@dataclass(frozen=True)
class GoneOn:
    """A training that goes on from a checkpoint; its files are closed again."""

    path: Path
    own: bool
    is_over: bool
    logged: Mapping[str, int]


def _resume(trainer: Trainer, fit: Fit, store: Store, train: Any, val: Any) -> GoneOn | None:
    """Take up the checkpoint that is meant, if there is one. Collective."""
    found = find(trainer, store)
    if found is None:
        return None
    resuming.misfits(fit, found.reader, found.state)
    _keep_seed(trainer, fit, found.state["progress"]["seed"], train, val)
    resuming.load(trainer, fit, found.reader, found.state)
    over = gathered(found.is_over(trainer.config), trainer.world.size)[0]
    if trainer.world.is_main and not over:
        note_finished(store.folder, False)
    return GoneOn(found.reader.path, found.own, over, found.state["progress"]["logged"])


def _keep_seed(trainer: Trainer, fit: Fit, seed: int, train: Any, val: Any) -> None:
    """The data goes on in the order that the training began with, whatever the seed is now."""
    engine = fit.engine
    if seed == engine.session.seed:
        return
    if trainer.config.seed is not None:
        trainer.say(f"seed={trainer.config.seed}: the training began with {seed}, which stays.")
    engine.session = replace(engine.session, seed=seed)
    _close_feeds(fit)
    fit.feed = engine.feed(train, training=True)
    fit.val_feed = None if val is None else engine.feed(val, training=False)
    fit.parts.total_of = fit.feed.total_of
    trainer._remake_step(fit)


@dataclass(frozen=True)
class Begun:
    """Whether an earlier attempt began this fit, and what the loggers' files held before it."""

    was_there: bool = False
    logged: Mapping[str, int] | None = None

    @classmethod
    def before(cls, store: Store) -> Begun:
        """From the note of the last owner; a first start counts the lines that are there."""
        known = read_json(store.folder / "owner.json").get("logged")
        if isinstance(known, dict):
            return cls(True, known)
        return cls(False, lines_there(store.folder.parent))


def _note_start(fit: Fit) -> None:
    state = fit.state
    shared().notes.note(
        first_step=state.step, step=state.step, began=time.time(),
        total_steps=state.total_steps, outcome="running", reason="",
    )  # fmt: skip


@contextmanager
def _unwatched(trainer: Trainer, fit: Fit, found: GoneOn) -> Iterator[None]:
    """A training that had finished: nothing is trained, and what follows `fit` finds its results."""
    state = fit.state
    trainer.say(
        f"This training had finished at step {state.step}, epoch {state.epoch}: {found.path} is "
        "loaded and nothing is trained. Give more epochs or max_steps to go on."
    )
    if trainer.world.is_main:
        _note_start(fit)
        shared().notes.note(saved_step=state.step, outcome="finished")
    try:
        yield
    finally:
        _close_feeds(fit)


def _greet(trainer: Trainer, fit: Fit, resumed: bool) -> None:
    """What only rank 0 says is loaded on rank 0 only."""
    from allranks.train.banner import banner

    for line in banner(trainer, fit, resumed):
        trainer.say(line)


def _start_bar(trainer: Trainer, fit: Fit) -> None:
    from allranks.train.progress import Progress

    trainer._bar = Progress(fit.state, enabled=trainer.config.progress).start()


def _draw(trainer: Trainer) -> None:
    from allranks.train.curve import draw_curve

    try:
        draw_curve(trainer.folder)
    except OSError as error:  # a picture must not hide how the training ended
        trainer.say(f"The loss curve could not be drawn: {error}")


@contextmanager
def _watched(trainer: Trainer, fit: Fit) -> Iterator[None]:
    """The bar runs, callbacks hear of the start and the end, loggers are closed."""
    callbacks, config = fit.callbacks, trainer.config
    if trainer.world.is_main and config.progress is not False:
        _start_bar(trainer, fit)
    status = "failed"
    try:
        callbacks.fire("fit_start", trainer)
        callbacks.state_dict()  # what cannot be saved is told now and not after hours
        yield
        status = "stopped" if trainer.stop_reason else "finished"
        _save_last(trainer)
        callbacks.fire("fit_end", trainer)
        if trainer._extras:  # logged after the last step
            trainer._write({}, kind="epoch")
    except Interrupted:
        status = "interrupted"
        raise
    except BaseException as error:
        callbacks.fire("exception", trainer, error)
        raise
    finally:
        if trainer._saving is not None:
            trainer._saving.close()
        if trainer._bar is not None:
            trainer._bar.stop()
            trainer._bar = None
        trainer._sink.close(status)
        if trainer.world.is_main:
            _draw(trainer)
        _close_feeds(fit)
    if trainer.world.is_main:
        shared().notes.note(step=fit.state.step, outcome="finished")
    if trainer.stop_reason:
        trainer.say(f"stopped after step {trainer.step}: {trainer.stop_reason}")


def _save_last(trainer: Trainer) -> None:
    """The end of the training, on the disk before anything else is done."""
    saving, config = trainer._saving, trainer.config
    assert saving is not None
    if config.checkpoint and not config.checkpoint_best_only:
        saving.save(None, wanted=True, finished=True)
    saving.finish()
    if config.checkpoint_best_only and trainer.world.is_main:
        note_finished(saving.folder)


def _close_feeds(fit: Fit) -> None:
    for each in (fit.feed, fit.val_feed):
        if each is not None:
            each.close()


@contextmanager
def passing(trainer: Trainer, kind: str) -> Iterator[None]:
    """A test or validation on its own: its numbers go to the same files."""
    _open_sink(trainer, resumed=True)
    callbacks = Callbacks([trainer, *trainer.callbacks])
    try:
        callbacks.fire(f"{kind}_start", trainer)
        yield
        callbacks.fire(f"{kind}_end", trainer)
    finally:
        trainer._sink.close("finished")


def _open_sink(trainer: Trainer, *, resumed: bool, logged: Mapping[str, int] | None = None) -> None:
    config = trainer.config
    trainer._sink = Loggers([])
    made: list[Any] = []
    here, device = trainer.world, trainer.device
    share_result(lambda: made.extend(sinks.make_loggers(config.loggers)), here, device)
    if here.is_main:
        trainer._sink = Loggers(made, warn=trainer.say)
        name = config.name or script_name()
        write_settings(trainer.folder, config)
        strategy = trainer.engine().strategy
        if settings := strategy.settings():
            write_json(trainer.folder / f"{strategy.name}.json", settings)
        run = RunInfo(
            trainer.folder, name, dict(config.hyperparams), resumed, trainer.world.size,
            trainer.step, logged, lost_attempt(trainer.folder),
        )  # fmt: skip
        trainer._sink.start(run)
