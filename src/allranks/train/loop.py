"""The loop: epochs and steps, and what happens between them.

Between two "stops" (a log, a validation, a checkpoint, the end) a step costs the step, a counter and
one comparison. Everything else happens at a stop.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from allranks.errors import UsageError
from allranks.runtime.preemption.deadline import shared_deadline
from allranks.train.agreement import Agreed
from allranks.train.callbacks.base import Callbacks
from allranks.train.closing import end_epoch, validate
from allranks.train.compilation import Compiler, careful_step
from allranks.train.data import BatchWeight, DistributedLoader
from allranks.train.departure import leave, make_agreement, watching
from allranks.train.engine import Engine
from allranks.train.limits import Limits
from allranks.train.marks import Marks
from allranks.train.meter import Meter
from allranks.train.recorder import Recorder
from allranks.train.sampling import NEVER, Sampling
from allranks.train.state import State
from allranks.train.stepping import Parts, Step, with_last
from allranks.train.timing import Clock

if TYPE_CHECKING:
    from allranks.train.trainer import Trainer


@dataclass
class Fit:
    """What one call of ``fit`` works with."""

    engine: Engine
    loader: DistributedLoader
    val_loader: DistributedLoader | None
    parts: Parts
    step: Step
    meter: Meter
    state: State
    callbacks: Callbacks
    compiler: Compiler
    ordinary: bool = True
    """The step is our own forward, backward and step, and not one that somebody else drives."""
    start_batch: int = 0
    """Batches of the first epoch that were done before a resumption."""


class Loop:
    """Runs a `Fit` to its end."""

    def __init__(self, trainer: Trainer, fit: Fit) -> None:
        self.trainer = trainer
        self.fit = fit
        self.config = trainer.config
        self.state = fit.state
        self.limits = Limits(trainer)
        here, device = fit.engine.session.world, fit.engine.session.device
        marks = Marks(device, shares=here.size > 1)
        self.clock = Clock(device, marks)
        self._sampling = Sampling(fit, marks, ordinary=fit.ordinary)
        self._recorder = Recorder(trainer, fit, self.clock, self._sampling)
        self._agreement = make_agreement(trainer, fit)
        every = self.config.log_every
        self._next_log = (fit.state.step // every + 1) * every
        self._next_stop = 0
        periodic = self.config.checkpoint and not self.config.checkpoint_best_only
        self._saves_steps = periodic and self.config.checkpoint_every_steps is not None

    def run(self) -> None:
        """All epochs, or until somebody says stop."""
        state, fit = self.state, self.fit
        fit.engine.model.train()
        fit.compiler.start(state.step, self.limits.steps_left)
        if fit.parts.search is not None and self.config.checkpoint:
            fit.parts.search.tell_losses(self.trainer.say)
        self.limits.begin()
        self.clock.begin(state.step)
        if self.clock.is_on:
            self._sampling.begin(state.step)
        skip = fit.start_batch
        epoch = state.epoch + (state.closing == "done")
        # A training that is over may have been broken off before the end of its last epoch was made.
        is_open = skip > 0 and state.closing != "stopped"
        while is_open or not self.limits.has_ended(epoch):
            self._one_epoch(epoch, skip)
            skip, is_open = 0, False
            epoch += 1
        if fit.parts.search is not None:
            fit.parts.search.finish()

    def watching(self) -> AbstractContextManager[None]:
        """Signals call for leaving instead of ending the process."""
        return watching(self._agreement.deadline)

    # -- one epoch

    def _one_epoch(self, epoch: int, skip: int) -> None:
        state = self.state
        state.epoch, state.batch = epoch, skip
        if not skip or self._goes_on(epoch):
            state.closing = ""
        self._recorder.begin_epoch()
        self.fire("epoch_start")
        began = time.perf_counter()
        if state.closing == "validating":  # the attempt before left in the middle of it
            state.closing = ""
            validate(self)
        self.save_asked()
        complete = not self.limits.has_ended(epoch) and self._train(epoch, skip)
        self._recorder.record(final=True)
        end_epoch(self, began, complete)

    def _goes_on(self, epoch: int) -> bool:
        """Whether batches follow in an epoch whose end was begun: the training was made longer since."""
        if self.state.closing in ("", "validating") or self.limits.has_ended(epoch):
            return False
        return self.state.batch < (self.fit.loader.batches_of(epoch) or 0)

    def _train(self, epoch: int, skip: int) -> bool:
        """The batches of an epoch. True when it came to its end."""
        batches = self.clock.timed(self.fit.loader.epoch(epoch, skip=skip))
        self._plan_stop()
        with self.clock.stepping():
            complete = self._quick(batches) if self._is_quiet() else self._observed(batches)
        if not self.state.batch:
            raise UsageError(
                f"The training data gave no batch in epoch {epoch}: is it empty, smaller than a batch "
                "with drop_last=True, or an iterator that was used up?"
            )
        return complete

    def _is_quiet(self) -> bool:
        """Nobody listens to batches and nothing looks at each of them."""
        heard = ("batch_start", "batch_end", "step_end")
        return self.config.accumulate == 1 and not any(map(self.fit.callbacks.has, heard))

    def _quick(self, batches: Iterator[tuple[Any, BatchWeight | None]]) -> bool:
        """The hot path. True when the epoch came to its end."""
        step, state, compiler = self.fit.step, self.state, self.fit.compiler
        for data, batch_weight in batches:
            if batch_weight is None and not compiler.trial:
                step(data, batch_weight)
            else:
                careful_step(self.trainer, self.fit, data, batch_weight)
                step = self.fit.step  # compiling may have made another
            state.batch += 1
            state.step = done = state.step + 1
            if done >= self._next_stop:
                if self._stop_here():
                    return False
                step = self.fit.step  # one that is marked, perhaps
        return True

    def _observed(self, batches: Iterator[tuple[Any, BatchWeight | None]]) -> bool:
        """With callbacks per batch, or several batches per step."""
        state, parts, fire = self.state, self.fit.parts, self.fire
        for data, batch_weight, last in with_last(batches, self.config.accumulate > 1):
            parts.last_batch, parts.batch = last, state.batch
            self.trainer.batch = data
            fire("batch_start")
            stepped = careful_step(self.trainer, self.fit, data, batch_weight)
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

    # -- stops

    def _plan_stop(self) -> None:
        """The next step at which anything but stepping happens."""
        config, step = self.config, self.state.step
        stops = [self._next_log, config.max_steps or NEVER, self._agreement.next]
        stops.append(self._sampling.next)
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

    def stop_next(self) -> None:
        """Something is to be done after the present step, on all ranks."""
        self._next_stop = 0

    def _stop_here(self) -> bool:
        """Do what is due at this step. True when training is over."""
        with self.clock.stopped(self.state.step):
            return self._do_due()

    def _do_due(self) -> bool:
        config, step, compiler = self.config, self.state.step, self.fit.compiler
        if compiler.next_look is not None and step >= compiler.next_look:
            compiler.look(step)
        if step >= self._next_log:
            self._recorder.record()
            self._next_log = (step // config.log_every + 1) * config.log_every
        if config.val_every_steps and step % config.val_every_steps == 0:
            validate(self)
        if self._saves_steps and step % (config.checkpoint_every_steps or 1) == 0:
            self._save()
        if step >= self._agreement.next:
            self.act(self.look())
        self.save_asked()
        over = self.limits.is_over()
        self._sampling.look(step)
        self._plan_stop()
        return over

    def look(self, *, now: bool = False) -> Agreed:
        """What the ranks agree on at this step; how long a save takes decides when to leave."""
        if self._agreement.deadline is not None and self.trainer._saving is not None:
            self._agreement.deadline.save_seconds = self.trainer._saving.longest
        return self._agreement.look(self.state.step, self.limits.wants_stop(), now=now)

    def act(self, agreed: Agreed) -> None:
        """Do what the ranks agreed on; the same on all of them."""
        if self.trainer.world.is_main:
            shared_deadline().progress.record_step(self.state.step)
        if agreed.stop:
            self.trainer._agree_to_stop()
        if self.limits.is_over():
            return  # what comes is the end, with a checkpoint of its own
        if agreed.leave:
            leave(self.trainer)
        if agreed.save:
            self._save()

    def _save(self) -> None:
        assert self.trainer._saving is not None
        with self.clock.saving():
            self._recorder.show()
            self.trainer._saving.save(None, wanted=False)
        self._agreement.saved(self.state.step)

    def save_asked(self) -> None:
        """What hooks asked for, where a step is whole; the end of the training saves it itself."""
        saving = self.trainer._saving
        if saving is not None and saving.is_asked and not self.limits.is_over():
            self._save()

    # -- small things

    def close(self) -> None:
        """Not collective: write what waits, however the training ended."""
        self._recorder.close()

    def fire(self, event: str, *args: Any) -> None:
        """Tell the callbacks, when one listens."""
        if self.fit.callbacks.has(event):
            with self.clock.aside():
                self.fit.callbacks.fire(event, self.trainer, *args)
