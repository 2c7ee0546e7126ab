"""Leaving before the end of the job: what may call for it, and how all ranks go.

One checkpoint is written and waited for; then every rank ends on purpose, and the next attempt goes on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from allranks.core.units import parse_time
from allranks.errors import AllranksError
from allranks.runtime.preemption.deadline import Deadline, shared_deadline
from allranks.train.agreement import Agreement

if TYPE_CHECKING:
    from allranks.train.loop import Fit
    from allranks.train.trainer import Trainer


def make_agreement(trainer: Trainer, fit: Fit) -> Agreement:
    """What may break the training off; nothing does where nothing is saved."""
    config = trainer.config
    deadline = shared_deadline() if config.checkpoint else None
    if deadline is not None:
        deadline.margin = float(parse_time(config.deadline_margin))
    return Agreement(config, fit.engine.session, fit.state.step, deadline)


@contextmanager
def watching(deadline: Deadline | None) -> Iterator[None]:
    """TERM, USR1 and USR2 are noted instead of ending the process, as long as it can be saved."""
    if deadline is None:
        yield
        return
    deadline.watch_signals()
    try:
        yield
    finally:
        deadline.signals.restore_term()


def leave(trainer: Trainer) -> NoReturn:
    """Save this step, wait until it is on the disk, and end all ranks on purpose."""
    deadline, step = shared_deadline(), trainer.step
    deadline.resolve_reason()
    if not _save_now(trainer):
        problem = f"the job is about to end ({deadline.reason}) and step {step} was not saved"
        if trainer.world.is_main:
            deadline.progress.update(step=step, outcome="failed", reason=problem)
        raise AllranksError(
            f"{problem[0].upper()}{problem[1:]}.\nWhat was trained since the checkpoint before is lost; "
            f"look at the disk that {trainer.folder} is on."
        )
    sentence = f"{deadline.describe_save(step)}; the next attempt resumes from there"
    trainer.say(sentence)
    raise deadline.record_interruption(step, sentence)


def _save_now(trainer: Trainer) -> bool:
    """A checkpoint of this step, on the disk when this returns; whether it is there."""
    began, saving = time.monotonic(), trainer._saving
    assert saving is not None
    saving.save(None, wanted=True)
    there = saving.finish()
    if there and trainer.world.is_main:
        shared_deadline().record_save(trainer.step, time.monotonic() - began)
    return there
