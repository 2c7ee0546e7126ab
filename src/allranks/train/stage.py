"""What surrounds a training: run folder, loggers, bar, checkpoints; taken down however it ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allranks.errors import UsageError
from allranks.runs.files import write_json
from allranks.train import checkpoint, resuming
from allranks.train import loggers as sinks
from allranks.train.assembly import make_fit
from allranks.train.callbacks.base import Callbacks
from allranks.train.folder import script_name, write_settings
from allranks.train.loggers.base import Loggers, RunInfo
from allranks.train.loop import Fit, Loop
from allranks.train.refusals import check_fit
from allranks.train.session import share_object, share_result

if TYPE_CHECKING:
    from allranks.train.trainer import Trainer


@contextmanager
def fitting(trainer: Trainer, train: Any, val: Any) -> Iterator[Loop]:
    """All that `fit` needs; loggers, bar and workers are closed however it ends."""
    engine = trainer.engine()
    feed = engine.feed(train, training=True)
    val_feed = None if val is None else engine.feed(val, training=False)
    check_fit(trainer, feed, val_feed)
    fit = make_fit(trainer, engine, feed, val_feed)
    resumed = resuming.resume(trainer, fit)
    _open_sink(trainer, resumed=resumed)
    if trainer.world.is_main:
        _greet(trainer, fit, resumed)
    trainer._loop = loop = Loop(trainer, fit)
    with _watched(trainer, fit):
        yield loop


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
        if config.checkpoint and not config.checkpoint_best_only:
            trainer.save_checkpoint("last")
        callbacks.fire("fit_end", trainer)
        if trainer._extras:  # logged after the last step
            trainer._write({}, kind="epoch")
    except BaseException as error:
        callbacks.fire("exception", trainer, error)
        raise
    finally:
        if trainer._bar is not None:
            trainer._bar.stop()
            trainer._bar = None
        trainer._sink.close(status)
        if trainer.world.is_main:
            _draw(trainer)
        for each in (fit.feed, fit.val_feed):
            if each is not None:
                each.close()
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


def _open_sink(trainer: Trainer, *, resumed: bool) -> None:
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
        trainer._sink.start(
            RunInfo(trainer.folder, name, dict(config.hyperparams), resumed, trainer.world.size)
        )


def save(trainer: Trainer, name: str) -> Path | None:
    """Gather the whole state (collective) and write it on rank 0."""
    loop = trainer._loop
    if loop is None:
        raise UsageError("save_checkpoint works during and after fit().")
    state = resuming.snapshot(trainer, loop.fit)
    path = None
    if trainer.world.is_main:
        kept = checkpoint.Checkpoints(trainer.folder, trainer.config.checkpoint_keep)
        try:
            path = kept.write(name, state)
        # torch.save tells of a full disk by a RuntimeError of its own.
        except (OSError, RuntimeError) as error:  # it must not end a training that can go on
            trainer.say(
                f"WARNING: the checkpoint '{name}' could not be written: {error}. The ones before it "
                "are intact and training goes on."
            )
    session = loop.fit.engine.session
    if share_object(path is not None, session.world, session.device):
        loop.fit.callbacks.fire("checkpoint", trainer)
    return path
