"""The loop: epochs and steps, and what happens between them.

Between two "stops" (a log, a validation, a checkpoint, the end) a step costs the step, a counter and
one comparison. Everything else happens at a stop.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from allranks.data import Feed, Share
from allranks.errors import UsageError
from allranks.train.callbacks.base import Callbacks
from allranks.train.compilation import Compiler, compile_errors
from allranks.train.engine import Engine
from allranks.train.meter import Meter
from allranks.train.recorder import Recorder
from allranks.train.schedule import advance
from allranks.train.session import total_over_ranks
from allranks.train.state import State
from allranks.train.stepping import Parts, Step

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
        self._deadline = self._end_time()
        self._next_log = fit.state.step + self.config.log_every
        self._next_stop = 0
        periodic = self.config.checkpoint and not self.config.checkpoint_best_only
        self._saves_steps = periodic and self.config.checkpoint_every_steps is not None

    def run(self) -> None:
        """All epochs, or until somebody says stop."""
        config, state, fit = self.config, self.state, self.fit
        fit.engine.model.train()
        fit.compiler.start(state.step, self._steps_left)
        skip = fit.start_batch
        first = state.epoch + (state.closing == "done")
        epoch = first
        while not self._over() and (config.last_epoch is None or epoch <= config.last_epoch):
            self._one_epoch(epoch, skip)
            skip = 0
            epoch += 1
        if fit.parts.finish is not None:
            fit.parts.finish()

    # -- one epoch

    def _one_epoch(self, epoch: int, skip: int) -> None:
        state, fire = self.state, self._fire
        state.epoch, state.batch = epoch, skip
        state.closing = state.closing if skip else ""
        self._recorder.begin_epoch()
        fire("epoch_start")
        began = time.perf_counter(), state.step
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
        stops = [self._next_log, config.max_steps or _NEVER]
        if (look := self.fit.compiler.next_look) is not None:
            stops.append(look)
        saves = config.checkpoint_every_steps if self._saves_steps else None
        for every in (config.val_every_steps, saves):
            if every:
                stops.append((step // every + 1) * every)
        self._next_stop = min(stops)

    def hurry(self) -> None:
        """Somebody asked to stop: look at it after the present step (alone) or the next log."""
        if self.fit.engine.session.world.size == 1:
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
            self._record(final=True)
            self.trainer.save_checkpoint(f"step-{step}")
        if self.fit.engine.session.world.size == 1 and self._wants_stop():
            self.trainer._agree_to_stop()
        over = self._over()
        self._plan_stop()
        return over

    def _over(self) -> bool:
        most = self.config.max_steps
        if most is not None and self.state.step >= most:
            return True
        return self.trainer._stop_agreed

    def _record(self, final: bool = False) -> None:
        self._recorder.record(float(self._wants_stop()), final=final)

    def _wants_stop(self) -> bool:
        if self._deadline is not None and time.perf_counter() >= self._deadline:
            self.trainer.stop(f"max_time={self.config.max_time} is over")
        return bool(self.trainer.stop_reason)

    # -- between epochs

    def _end_epoch(self, began: tuple[float, int], complete: bool) -> None:
        config, state, trainer = self.config, self.state, self.trainer
        means = {f"train_{name}": value for name, value in self._recorder.epoch_means().items()}
        seconds = time.perf_counter() - began[0]
        trainer._write({**means, "epoch_seconds": seconds}, kind="epoch")
        if complete and state.epoch == 1:
            self._audit()
        last = self._is_last()
        due = config.val_every and (state.epoch % config.val_every == 0 or last)
        whole = complete or state.batch == self.fit.feed.batches
        validated = state.closing == "validated"
        state.closing = "validated" if whole else ""
        if due and self.fit.val_feed is not None and not (validated or config.val_every_steps):
            self.validate()
        if whole and config.scheduler_every == "epoch" and self.fit.parts.scheduler is not None:
            advance(self.fit.parts.scheduler, trainer.metrics, trainer.monitor)
        state.closing = "done" if whole else ""
        self._fire("epoch_end")
        shown = config.print_every and (state.epoch % config.print_every == 0 or last)
        if shown and trainer.world.is_main:
            self._say_epoch(seconds)
        if total_over_ranks(float(self._wants_stop()), self.fit.engine.session):
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
        with average.applied() if average is not None else nullcontext():
            values = self.trainer._evaluate(self.fit.val_feed, "val")
        state.phase = "train"
        self.trainer._write(values, kind="val")
        if "val_loss" in values:
            state.values["val_loss"] = values["val_loss"]
        self._fire("val_end")
        return values

    # -- small things

    def _fire(self, event: str, *args: Any) -> None:
        if self.fit.callbacks.has(event):
            self.fit.callbacks.fire(event, self.trainer, *args)

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
