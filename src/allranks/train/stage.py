"""What surrounds a training: run folder, loggers, bar, checkpoints; taken down however it ends."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from typing import TYPE_CHECKING, Any

from allranks.errors import Interrupted
from allranks.runs.atomic_files import write_json
from allranks.runs.progress_file import current_attempt
from allranks.runtime.preemption.deadline import shared_deadline
from allranks.train import loggers as sinks
from allranks.train.assembly import make_fit
from allranks.train.callbacks.base import Callbacks
from allranks.train.checkpoint.store import CheckpointStore
from allranks.train.folder import (
    attempt_folder,
    checkpoint_folder,
    fit_number,
    lost_attempt,
    present_attempt,
    script_name,
    write_settings,
)
from allranks.train.loggers.base import Loggers, RunInfo
from allranks.train.loop import Fit, Loop
from allranks.train.refusals import check_fit
from allranks.train.session import share_result
from allranks.train.starting import GoneOn, begin, close_loaders

if TYPE_CHECKING:
    from allranks.train.trainer import Trainer


@contextmanager
def fitting(trainer: Trainer, train: Any, val: Any) -> Iterator[Loop | None]:
    """All that `fit` needs; loggers, bar and workers are closed however it ends.

    None where the training had finished before: its state is loaded, and there is nothing to do.
    """
    engine = trainer.engine()
    loader = engine.distribute(train, training=True)
    val_loader = None if val is None else engine.distribute(val, training=False)
    check_fit(trainer, loader, val_loader)
    fit = make_fit(trainer, engine, loader, val_loader)
    store = CheckpointStore(checkpoint_folder(trainer.folder))
    how = begin(trainer, fit, store, train, val)
    trainer._loop = loop = Loop(trainer, fit)
    gone_on = how.gone_on
    if gone_on is not None and gone_on.is_over:
        with _unwatched(trainer, fit, gone_on):
            yield None
        return
    _open_sink(trainer, resumed=how.resumed, logged=how.logged)
    if trainer.world.is_main:
        _greet(trainer, fit, gone_on is not None)
        _note_start(trainer, fit)
    with _sampled(trainer), closing(loop), loop.watching(), _watched(trainer, fit):
        yield loop


def _sampled(trainer: Trainer) -> AbstractContextManager[None]:
    """What the node does is written down while it trains, where no agent does that already."""
    from allranks.runtime.telemetry.sampler import sample_here

    here = trainer.world
    return sample_here(
        lambda: current_attempt() or attempt_folder(trainer.folder),
        here.node_rank, here.local_rank, here.local_size,
        trainer.say if here.is_main else _complain,
    )  # fmt: skip


def _complain(text: str) -> None:
    """What only this node knows is said here: rank 0 is on another."""
    print(f"allranks: {os.uname().nodename}: {text}", file=sys.stderr, flush=True)


def _note_start(trainer: Trainer, fit: Fit) -> None:
    state = fit.state
    shared_deadline().set_attempt_folder(present_attempt(trainer.folder))
    shared_deadline().progress.update(
        first_step=state.step, step=state.step, began=time.time(),
        total_steps=state.total_steps, outcome="running", reason="",
        fit=fit_number(trainer.folder), saved_step=None,
    )  # fmt: skip


@contextmanager
def _unwatched(trainer: Trainer, fit: Fit, found: GoneOn) -> Iterator[None]:
    """A training that had finished: nothing is trained, and what follows `fit` finds its results."""
    state = fit.state
    assert trainer._saving is not None
    trainer._saving.had_finished(found.path if found.own else None)
    trainer._extras = {}  # written at its end
    trainer.say(
        f"This training had finished at step {state.step}, epoch {state.epoch}: {found.path} is "
        "loaded and nothing is trained. Give more epochs or max_steps to go on."
    )
    if trainer.world.is_main:
        _note_start(trainer, fit)
        shared_deadline().progress.update(saved_step=state.step, outcome="finished")
    try:
        yield
    finally:
        close_loaders(fit)


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
    callbacks, config, saving = fit.callbacks, trainer.config, trainer._saving
    assert saving is not None
    if trainer.world.is_main and config.progress is not False:
        _start_bar(trainer, fit)
    status = "failed"
    try:
        saving.begin()
        callbacks.fire("fit_start", trainer)
        saving.rehearse()
        saving.save_asked()
        yield
        status = "stopped" if trainer.stop_reason else "finished"
        saving.end()
        callbacks.fire("fit_end", trainer)
        if trainer._extras:  # logged after the last step
            trainer._write({}, kind="epoch")
    except Interrupted:
        status = "interrupted"
        raise
    except BaseException as error:
        saving.fail()
        callbacks.fire("exception", trainer, error)
        raise
    finally:
        saving.close()
        if trainer._bar is not None:
            trainer._bar.stop()
            trainer._bar = None
        trainer._sink.close(status)
        if trainer.world.is_main:
            _draw(trainer)
        close_loaders(fit)
    if trainer.world.is_main:
        shared_deadline().progress.update(step=fit.state.step, outcome="finished")
    if trainer.stop_reason:
        trainer.say(f"stopped after step {trainer.step}: {trainer.stop_reason}")


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
            trainer.step, logged, lost_attempt(trainer.folder), fit_number(trainer.folder),
        )  # fmt: skip
        trainer._sink.start(run)
