"""The loop: epochs and steps, and what happens between them.

Between two "stops" (a log, a validation, a checkpoint, the end) a step costs the step, a counter and
one comparison. Everything else happens at a stop.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from allranks.data import Feed, Share
from allranks.errors import AllranksError, UsageError
from allranks.leaving.deadline import shared
from allranks.train.agreement import Agreed, Agreement, LeaveNow
from allranks.train.callbacks.base import Callbacks
from allranks.train.compilation import Compiler, compile_errors
from allranks.train.engine import Engine
from allranks.train.meter import Meter
from allranks.train.recorder import Recorder
from allranks.train.schedule import advance
from allranks.train.state import State
from allranks.train.stepping import Parts, Step
from allranks.units import parse_time

if TYPE_CHECKING:
    from allranks.train.trainer import Trainer

_NEVER = 1 << 62


@dataclass
class Fit:
    """What one call of ``fit`` works with."""

    engine: Engine
    feed: Feed
    val_feed: Feed | None
    parts: Parts
    step: Step
    meter: Meter
    state: State
    callbacks: Callbacks
    compiler: Compiler
    start_batch: int = 0
    """Batches of the first epoch that were done before a resumption."""


class Loop:
    """Runs a `Fit` to its end."""

    def __init__(self, trainer: Trainer, fit: Fit) -> None:
        self.trainer = trainer
        self.fit = fit
        self.config = trainer.config
        self.state = fit.state
        self._recorder = Recorder(trainer, fit.parts, fit.meter, fit.engine.session)
        self._end = self._end_time()
        self._agreement = self._make_agreement()
        every = self.config.log_every
        self._next_log = (fit.state.step // every + 1) * every
        self._next_stop = 0
        periodic = self.config.checkpoint and not self.config.checkpoint_best_only
        self._saves_steps = periodic and self.config.checkpoint_every_steps is not None

    def run(self) -> None:
        """All epochs, or until somebody says stop."""
        config, state, fit = self.config, self.state, self.fit
        fit.engine.model.train()
        fit.compiler.start(state.step, self._steps_left)
        skip = fit.start_batch
        epoch = state.epoch + (state.closing == "done")
        while not self._over() and (config.last_epoch is None or epoch <= config.last_epoch):
            self._one_epoch(epoch, skip)
            skip = 0
            epoch += 1
        if fit.parts.finish is not None:
            fit.parts.finish()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """TERM, USR1 and USR2 are noted instead of ending the process, as long as it can be saved."""
        if self._agreement.deadline is None:
            yield
            return
        self._agreement.deadline.watch()
        try:
            yield
        finally:
            self._agreement.deadline.signals.release()

    # -- one epoch

    def _one_epoch(self, epoch: int, skip: int) -> None:
        state, fire = self.state, self._fire
        state.epoch, state.batch = epoch, skip
        state.closing = state.closing if skip else ""
        self._recorder.begin_epoch()
        fire("epoch_start")
        began = time.perf_counter(), state.step
        if state.closing == "validating":  # the attempt before left in the middle of it
            state.closing = ""
            self.validate()
        batches = self.fit.feed.epoch(epoch, skip=skip)
        self._plan_stop()
        complete = self._quick(batches) if self._is_quiet() else self._observed(batches)
        if not state.batch:
            raise UsageError(
                f"The training data gave no batch in epoch {epoch}: is it empty, smaller than a batch "
                "with drop_last=True, or an iterator that was used up?"
            )
        self._record(final=True)
        self._end_epoch(began, complete)

    def _is_quiet(self) -> bool:
        """Nobody listens to batches and nothing looks at each of them."""
        heard = ("batch_start", "batch_end", "step_end")
        return self.config.accumulate == 1 and not any(map(self.fit.callbacks.has, heard))

    def _quick(self, batches: Iterator[tuple[Any, Share | None]]) -> bool:
        """The hot path. True when the epoch came to its end."""
        step, state, compiler = self.fit.step, self.state, self.fit.compiler
        for data, share in batches:
            if share is None and not compiler.trial:
                step(data, share)
            else:
                self._careful(data, share)
                step = self.fit.step  # compiling may have made another
            state.batch += 1
            state.step = done = state.step + 1
            if done >= self._next_stop and self._stop_here():
                return False
        return True

    def _observed(self, batches: Iterator[tuple[Any, Share | None]]) -> bool:
        """With callbacks per batch, or several batches per step."""
        state, parts, fire = self.state, self.fit.parts, self._fire
        for data, share, last in _with_last(batches, self.config.accumulate > 1):
            parts.last_batch, parts.batch = last, state.batch
            self.trainer.batch = data
            fire("batch_start")
            stepped = self._careful(data, share)
            state.batch += 1
            fire("batch_end")
            if not stepped:
                continue
            state.step += 1
            fire("step_end")
            if state.step >= self._next_stop and self._stop_here():
                return False
        self.trainer.batch = None
        return True

    def _careful(self, data: Any, share: Share | None) -> bool:
        """A batch of an odd shape runs uncompiled; the first compiled one may fail to compile."""
        compiler = self.fit.compiler
        if not compiler.trial:
            with compiler.eager() if share is not None and compiler.mode else nullcontext():
                return self.fit.step(data, share)
        if share is not None:
            with compiler.eager():
                return self.fit.step(data, share)
        compiler.trial = False
        if self.fit.engine.session.device.type == "cuda":
            self.fit.parts.keep_loss = _cloned if compiler.graphs else torch.Tensor.detach
        self.trainer._remake_step(self.fit)
        try:
            return self.fit.step(data, share)
        except compile_errors() as error:
            compiler.failed(error)
            for optimizer in self.fit.engine.optimizers:
                optimizer.zero_grad()
            return self.fit.step(data, share)

    # -- stops

    def _plan_stop(self) -> None:
        """The next step at which anything but stepping happens."""
        config, step = self.config, self.state.step
        stops = [self._next_log, config.max_steps or _NEVER, self._agreement.next]
        if (look := self.fit.compiler.next_look) is not None:
            stops.append(look)
        saves = config.checkpoint_every_steps if self._saves_steps else None
        for every in (config.val_every_steps, saves):
            if every:
                stops.append((step // every + 1) * every)
        self._next_stop = min(stops)

    def hurry(self) -> None:
        """Somebody asked to stop: look at it after the present step (alone) or the next look."""
        self._agreement.hurry()
        if self._agreement.alone:
            self._next_stop = 0

    def _stop_here(self) -> bool:
        """Do what is due at this step. True when training is over."""
        config, step, compiler = self.config, self.state.step, self.fit.compiler
        if compiler.next_look is not None and step >= compiler.next_look:
            compiler.look(step)
        if step >= self._next_log:
            self._record()
            self._next_log = (step // config.log_every + 1) * config.log_every
        if config.val_every_steps and step % config.val_every_steps == 0:
            self.validate()
        if self._saves_steps and step % (config.checkpoint_every_steps or 1) == 0:
            self._save()
        if step >= self._agreement.next:
            self._act(self._look())
        over = self._over()
        self._plan_stop()
        return over

    def _look(self, *, now: bool = False) -> Agreed:
        """What the ranks agree on at this step; how long a save takes decides when to leave."""
        if self._agreement.deadline is not None and self.trainer._saving is not None:
            self._agreement.deadline.save_seconds = self.trainer._saving.longest
        return self._agreement.look(self.state.step, self._wants_stop(), now=now)

    def _act(self, agreed: Agreed) -> None:
        """Do what the ranks agreed on; the same on all of them."""
        if self.trainer.world.is_main:
            shared().notes.stepped(self.state.step)
        if agreed.stop:
            self.trainer._agree_to_stop()
        if self._over():
            return  # what comes is the end, with a checkpoint of its own
        if agreed.leave:
            self._leave()
        if agreed.save:
            self._save()

    def _save(self) -> None:
        self.trainer.save_checkpoint()
        self._agreement.saved(self.state.step)

    def _leave(self) -> None:
        """Save this step, wait until it is on the disk, and end all ranks on purpose."""
        trainer, deadline, step = self.trainer, shared(), self.state.step
        deadline.agreed()
        if not self._save_now():
            problem = f"the job is about to end ({deadline.reason}) and step {step} was not saved"
            if trainer.world.is_main:
                deadline.notes.note(step=step, outcome="failed", reason=problem)
            raise AllranksError(
                f"{problem[0].upper()}{problem[1:]}.\nWhat was trained since the checkpoint before is lost; "
                f"look at the disk that {trainer.folder} is on."
            )
        sentence = f"{deadline.told(step)}; the next attempt goes on from there"
        trainer.say(sentence)
        raise deadline.interruption(step, sentence)

    def _save_now(self) -> bool:
        """A checkpoint of this step, on the disk when this returns; whether it is there."""
        began, saving = time.monotonic(), self.trainer._saving
        assert saving is not None
        saving.save(None, wanted=True)
        there = saving.finish()
        if there and self.trainer.world.is_main:
            shared().saved(self.state.step, time.monotonic() - began)
        return there

    def _over(self) -> bool:
        most = self.config.max_steps
        if most is not None and self.state.step >= most:
            return True
        return self.trainer._stop_agreed

    def _record(self, final: bool = False) -> None:
        self._recorder.record(final=final)

    def _wants_stop(self) -> bool:
        if self._end is not None and time.perf_counter() >= self._end:
            self.trainer.stop(f"max_time={self.config.max_time} is over")
        return bool(self.trainer.stop_reason)

    # -- between epochs

    def _end_epoch(self, began: tuple[float, int], complete: bool) -> None:
        config, state, trainer = self.config, self.state, self.trainer
        means = {f"train_{name}": value for name, value in self._recorder.epoch_means().items()}
        seconds = time.perf_counter() - began[0]
        if not state.closing:  # else an attempt before this one has written it
            trainer._write({**means, "epoch_seconds": seconds}, kind="epoch")
        if complete and state.epoch == 1:
            self._audit()
        last = self._is_last()
        due = config.val_every and (state.epoch % config.val_every == 0 or last)
        whole = complete or state.batch == self.fit.feed.batches
        state.closing = state.closing or ("written" if whole else "")
        if due and state.closing != "validated" and not config.val_every_steps:
            self.validate()
        if whole and config.scheduler_every == "epoch" and self.fit.parts.scheduler is not None:
            advance(self.fit.parts.scheduler, trainer.metrics, trainer.monitor)
        state.closing = "done" if whole else ""
        self._fire("epoch_end")
        shown = config.print_every and (state.epoch % config.print_every == 0 or last)
        if shown and trainer.world.is_main:
            self._say_epoch(seconds)
        agreed = self._look(now=True)
        if not (last and whole):
            self._act(agreed)
        elif agreed.stop:
            trainer._agree_to_stop()

    def _say_epoch(self, seconds: float) -> None:
        from allranks.train.banner import epoch_line

        trainer = self.trainer
        trainer.say(epoch_line(trainer.epoch, self.config.last_epoch, trainer.metrics, seconds))

    def _is_last(self) -> bool:
        return self._over() or self.state.epoch == self.config.last_epoch

    def _audit(self) -> None:
        report = self.fit.feed.check() if self.config.audit else None
        if report is not None and (not report.ok or self.config.verbose):
            self.trainer.say(("" if report.ok else "WARNING: ") + report.message)

    def validate(self) -> dict[str, float]:
        """Validate in the middle of training; the average's weights when there is one."""
        if self.fit.val_feed is None:
            return {}
        state, average = self.state, self.fit.parts.average
        self._fire("val_start")
        state.phase = "validate"
        try:
            with average.applied() if average is not None else nullcontext():
                watched = self._agreement.watched(self.fit.val_feed)
                values = self.trainer._evaluate(watched, "val")
        except LeaveNow:
            state.phase = "train"
            state.closing = state.closing or "validating"
            self._leave()
        state.phase = "train"
        state.closing = "validated" if state.closing == "written" else state.closing
        self.trainer._write(values, kind="val")
        if "val_loss" in values:
            state.values["val_loss"] = values["val_loss"]
        self._fire("val_end")
        return values

    # -- small things

    def _fire(self, event: str, *args: Any) -> None:
        if self.fit.callbacks.has(event):
            self.fit.callbacks.fire(event, self.trainer, *args)

    def _make_agreement(self) -> Agreement:
        """What may break the training off; signals are watched as long as it can be saved."""
        deadline = shared() if self.config.checkpoint else None
        if deadline is not None:
            deadline.margin = float(parse_time(self.config.deadline_margin))
        session = self.fit.engine.session
        return Agreement(self.config, session, self.state.step, deadline)

    def _end_time(self) -> float | None:
        seconds = self.config.max_seconds
        return None if seconds is None else time.perf_counter() + seconds

    def _steps_left(self, step: int) -> float | None:
        return None if self.state.total_steps is None else self.state.total_steps - step


def _with_last(
    batches: Iterator[tuple[Any, Share | None]], ahead: bool
) -> Iterator[tuple[Any, Share | None, bool]]:
    """Each batch with whether it is the epoch's last; ``ahead`` fetches one more to know it."""
    if not ahead:
        for data, share in batches:
            yield data, share, False
        return
    held = next(batches, None)
    while held is not None:
        following = next(batches, None)
        yield held[0], held[1], following is None
        held = following


def _cloned(loss: torch.Tensor) -> torch.Tensor:
    return loss.detach().clone()
