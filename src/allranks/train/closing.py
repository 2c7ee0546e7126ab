"""The end of an epoch: its metrics are written, it is validated, schedules and callbacks follow.

How far that has come is noted in the state. A later attempt goes on with the part that was broken off and
repeats none before it.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import TYPE_CHECKING

from allranks.train.agreement import LeaveNow
from allranks.train.departure import leave
from allranks.train.schedule import advance

if TYPE_CHECKING:
    from allranks.train.data import DistributedLoader
    from allranks.train.loop import Loop


def end_epoch(loop: Loop, began: float, complete: bool) -> None:
    """After the last batch; ``complete`` when the data came to its end."""
    config, state, parts = loop.config, loop.state, loop.fit.parts
    seconds = time.perf_counter() - began
    _write_means(loop, seconds)
    if complete and state.epoch == 1:
        _audit(loop)
    last = loop.limits.has_ended(state.epoch + 1)
    due = config.val_every and (state.epoch % config.val_every == 0 or last)
    if due and state.closing != "validated" and not config.val_every_steps:
        validate(loop)
    whole = complete or state.batch == loop.fit.loader.batches_of(state.epoch)
    if whole and config.scheduler_every == "epoch" and parts.scheduler is not None:
        advance(parts.scheduler, loop.trainer.metrics, loop.trainer.monitor)
    state.closing = "done" if whole else "stopped"
    loop.fire("epoch_end")
    if config.print_every and (state.epoch % config.print_every == 0 or last):
        _say_epoch(loop, seconds)
    agreed = loop.look(now=True)
    if not (last and whole):
        loop.act(agreed)
    elif agreed.stop:
        loop.trainer._agree_to_stop()
    if not loop.limits.has_ended(state.epoch + 1):
        loop.save_asked()


def _write_means(loop: Loop, seconds: float) -> None:
    """Once: an attempt before this one may have written them."""
    if loop.state.closing:
        return
    means = {f"train_{name}": value for name, value in loop._recorder.epoch_means().items()}
    loop.trainer._write({**means, "epoch_seconds": seconds}, kind="epoch")
    loop.state.closing = "written"


def validate(loop: Loop) -> None:
    """Validate in the middle of training; the average's weights when there is one."""
    if loop.fit.val_loader is not None:
        with loop.clock.away():
            loop._recorder.show()
            _validate(loop, loop.fit.val_loader)


def _validate(loop: Loop, loader: DistributedLoader) -> None:
    fit, state, trainer = loop.fit, loop.state, loop.trainer
    average = fit.parts.average
    loop.fire("val_start")
    state.phase = "validate"
    try:
        with average.applied() if average is not None else nullcontext():
            values = trainer._evaluate(loop._agreement.watched(loader), "val")
    except LeaveNow:
        state.phase = "train"
        state.closing = state.closing or "validating"
        leave(trainer)
    state.phase = "train"
    loop._agreement.validated(state.step)
    state.closing = "validated" if state.closing == "written" else state.closing
    trainer._write(values, kind="val")
    if "val_loss" in values:
        state.values["val_loss"] = values["val_loss"]
    loop.fire("val_end")


def _say_epoch(loop: Loop, seconds: float) -> None:
    from allranks.train.banner import epoch_line

    trainer = loop.trainer
    if trainer.world.is_main:
        last = loop.config.last_epoch
        trainer.say(epoch_line(trainer.epoch, last, trainer.metrics, seconds))


def _audit(loop: Loop) -> None:
    report = loop.fit.loader.check() if loop.config.audit else None
    if report is not None and (not report.ok or loop.config.verbose):
        loop.trainer.say(("" if report.ok else "WARNING: ") + report.message)
