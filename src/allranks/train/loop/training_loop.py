"""The training loop: epochs and steps, and the work between them.

Between two steps at which something is due (a log, a validation, a checkpoint, the end) a step costs the
step itself, a counter and one comparison. All other work happens at a step where it is due.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch

from allranks.errors import UsageError
from allranks.runtime.preemption.deadline import shared_deadline
from allranks.train.context import TrainContext
from allranks.train.data import BatchWeight, DistributedLoader
from allranks.train.loop.checkpoint_policy import CheckpointManager
from allranks.train.loop.evaluation import evaluate
from allranks.train.loop.fit_setup import has_standard_step, make_step
from allranks.train.loop.stop_agreement import (
    Coordinator,
    PreemptionRequested,
    StopConditions,
    SyncDecision,
)
from allranks.train.monitoring.profiled_steps import NEVER
from allranks.train.monitoring.recorder import MetricsRecorder
from allranks.train.step.compilation import compile_errors
from allranks.train.step.optimizer_settings import step_epoch_schedulers
from allranks.train.step.step_functions import flag_last_batch


class TrainingLoop:
    """Runs one ``fit`` to its end."""

    def __init__(
        self, context: TrainContext, recorder: MetricsRecorder, checkpoints: CheckpointManager
    ) -> None:
        self._context, self._config, self._state = context, context.config, context.state
        self._recorder, self._checkpoints = recorder, checkpoints
        self._clock, self._sampler = recorder.clock, recorder.sampler
        self._limits = StopConditions(context)
        self.coordinator = Coordinator(context)
        every = self._config.log_every
        self._next_log = (self._state.step // every + 1) * every
        periodic = self._config.checkpoint and not self._config.checkpoint_best_only
        self._saves_steps = periodic and self._config.checkpoint_every_steps is not None

    def run(self) -> None:
        """Run all epochs, or until the training is stopped."""
        context, state = self._context, self._state
        search = context.search
        context.engine.model.train()
        context.compiler.start(state.step, self._limits.steps_left)
        if search is not None and self._config.checkpoint:
            search.warn_of_lost_state(context.say)
        self._limits.begin()
        self._recorder.begin(state.step)
        if self._clock.is_on:
            self._sampler.begin(state.step, standard=has_standard_step(context))
        skip = context.start_batch
        epoch = state.epoch + (state.epoch_end == "done")
        # A training that is over may have been interrupted before the end of its last epoch.
        is_open = skip > 0 and state.epoch_end != "stopped"
        while is_open or not self._limits.has_ended(epoch):
            self._run_epoch(epoch, skip)
            skip, is_open = 0, False
            epoch += 1
        if search is not None:
            search.finish()

    # -- one epoch

    def _run_epoch(self, epoch: int, skip: int) -> None:
        state = self._state
        state.epoch, state.batch = epoch, skip
        if not skip or self._continues(epoch):
            state.epoch_end = ""
        self._recorder.begin_epoch(resumed=skip > 0)
        self._fire("epoch_start")
        began = time.perf_counter()
        if state.epoch_end == "validating":  # the earlier attempt was interrupted in it
            state.epoch_end = ""
            self._validate()
        self._save_requested()
        complete = not self._limits.has_ended(epoch) and self._train_epoch(epoch, skip)
        self._recorder.record(final=True)
        self._end_epoch(time.perf_counter() - began, complete)

    def _continues(self, epoch: int) -> bool:
        """Whether batches follow in an epoch that had ended early: the training was made longer since."""
        if self._state.epoch_end in ("", "validating") or self._limits.has_ended(epoch):
            return False
        return self._state.batch < (self._context.loader.batches_of(epoch) or 0)

    def _train_epoch(self, epoch: int, skip: int) -> bool:
        """Train on the batches of an epoch; return whether it came to its end."""
        batches = self._clock.timed(self._context.loader.epoch(epoch, skip=skip))
        self._plan_next_due()
        with self._clock.stepping():
            complete = self._fast_steps(batches) if self._is_quiet() else self._all_steps(batches)
        if not self._state.batch:
            raise UsageError(
                f"The training data gave no batch in epoch {epoch}: is it empty, smaller than a batch "
                "with drop_last=True, or an iterator that was used up?"
            )
        return complete

    def _is_quiet(self) -> bool:
        """Whether no callback listens to batches and each batch makes a step."""
        events = ("batch_start", "batch_end", "step_end")
        return self._config.accumulate == 1 and not any(map(self._context.callbacks.has, events))

    def _fast_steps(self, batches: Iterator[tuple[Any, BatchWeight | None]]) -> bool:
        """The hot path. Return whether the epoch came to its end."""
        context, state, compiler = self._context, self._state, self._context.compiler
        step = context.step
        for data, batch_weight in batches:
            if batch_weight is None and not compiler.trial:
                step(data, batch_weight)
            else:
                self._guarded_step(data, batch_weight)
                step = context.step  # compiling may have replaced it
            state.batch += 1
            state.step = done = state.step + 1
            if done >= state.next_due:
                if self._do_due_work():
                    return False
                step = context.step  # the sampler may have replaced it
        return True

    def _all_steps(self, batches: Iterator[tuple[Any, BatchWeight | None]]) -> bool:
        """With callbacks per batch, or several batches per step."""
        context, state, steps = self._context, self._state, self._context.step_context
        for data, batch_weight, last in flag_last_batch(batches, self._config.accumulate > 1):
            steps.last_batch, steps.batch = last, state.batch
            context.batch = data
            self._fire("batch_start")
            stepped = self._guarded_step(data, batch_weight)
            state.batch += 1
            self._fire("batch_end")
            if not stepped:
                continue
            state.step += 1
            self._fire("step_end")
            if state.step >= state.next_due and self._do_due_work():
                return False
        context.batch = None
        return True

    def _guarded_step(self, data: Any, batch_weight: BatchWeight | None) -> bool:
        """Run a batch of an odd shape uncompiled; the first compiled batch may fail to compile."""
        context, compiler = self._context, self._context.compiler
        if batch_weight is not None or not compiler.trial:
            with compiler.eager() if batch_weight is not None and compiler.mode else nullcontext():
                return context.step(data, batch_weight)
        compiler.trial = False
        if context.device.type == "cuda":
            detach = _detach_and_clone if compiler.uses_graphs else torch.Tensor.detach
            context.step_context.detach_loss = detach
        context.step = make_step(context)
        try:
            return context.step(data, batch_weight)
        except compile_errors() as error:
            compiler.give_up(error)
            for optimizer in context.engine.optimizers:
                optimizer.zero_grad()
            return context.step(data, batch_weight)

    # -- what is due between steps

    def _plan_next_due(self) -> None:
        """Find the next step at which anything but stepping happens."""
        config, step = self._config, self._state.step
        due = [self._next_log, config.max_steps or NEVER, self.coordinator.next_sync]
        due.append(self._sampler.next)
        if (check := self._context.compiler.next_check) is not None:
            due.append(check)
        saves = config.checkpoint_every_steps if self._saves_steps else None
        for every in (config.val_every_steps, saves):
            if every:
                due.append((step // every + 1) * every)
        self._state.next_due = min(due)

    def _do_due_work(self) -> bool:
        """Do what is due at this step; return whether training is over."""
        config, step, compiler = self._config, self._state.step, self._context.compiler
        with self._clock.paused(step):
            if compiler.next_check is not None and step >= compiler.next_check:
                compiler.check(step)
            if step >= self._next_log:
                self._recorder.record()
                self._next_log = (step // config.log_every + 1) * config.log_every
            if config.val_every_steps and step % config.val_every_steps == 0:
                self._validate()
            if self._saves_steps and step % (config.checkpoint_every_steps or 1) == 0:
                self._save()
            if self.coordinator.is_due(step):
                self._act(self._sync())
            self._save_requested()
            over = self._limits.is_over()
            self._sampler.update(step)
            self._plan_next_due()
            return over

    def _sync(self, *, now: bool = False) -> SyncDecision:
        """Let the ranks agree on what to do at this step."""
        stop, seconds = self._limits.is_requested(), self._checkpoints.save_seconds
        return self.coordinator.sync(stop=stop, save_seconds=seconds, now=now)

    def _act(self, decision: SyncDecision) -> None:
        """Do what the ranks agreed on; the same on all of them."""
        if self._context.world.is_main:
            shared_deadline().progress.record_step(self._state.step)
        if decision.stop:
            self._context.agree_to_stop()
        if self._limits.is_over():
            return  # the end of the training saves its own checkpoint
        if decision.preempt:
            self._checkpoints.save_and_exit()
        if decision.save:
            self._save()

    def _save(self) -> None:
        with self._clock.saving():
            self._recorder.flush()
            self._checkpoints.save(None, wanted=False)
        self.coordinator.note_saved()

    def _save_requested(self) -> None:
        """Save what hooks asked for; at the end of the training that happens anyway."""
        if self._checkpoints.is_requested and not self._limits.is_over():
            self._save()

    # -- the end of an epoch: an interrupted one resumes at the part that was not done

    def _end_epoch(self, seconds: float, complete: bool) -> None:
        """Write metrics, validate, step schedulers, call hooks; ``complete``: the data came to its end."""
        config, state, context = self._config, self._state, self._context
        self._write_epoch(seconds)
        if complete and state.epoch == 1:
            self._audit()
        last = self._limits.has_ended(state.epoch + 1)
        due = config.val_every and (state.epoch % config.val_every == 0 or last)
        if due and state.epoch_end != "validated" and not config.val_every_steps:
            self._validate()
        whole = complete or state.batch == context.loader.batches_of(state.epoch)
        if whole and config.scheduler_every == "epoch":
            step_epoch_schedulers(context.step_context.scheduler, context.metrics, context.monitor)
        state.epoch_end = "done" if whole else "stopped"
        self._fire("epoch_end")
        if config.print_every and (state.epoch % config.print_every == 0 or last):
            self._print_epoch(seconds)
        decision = self._sync(now=True)
        if not (last and whole):
            self._act(decision)
        elif decision.stop:
            context.agree_to_stop()
        if not self._limits.has_ended(state.epoch + 1):
            self._save_requested()

    def _write_epoch(self, seconds: float) -> None:
        """Write the epoch's metrics, unless an earlier attempt did."""
        if self._state.epoch_end:
            return
        means = {f"train_{name}": value for name, value in self._context.epoch_sums.means().items()}
        self._context.write_metrics({**means, "epoch_seconds": seconds}, kind="epoch")
        self._state.epoch_end = "written"

    def _print_epoch(self, seconds: float) -> None:
        if self._context.world.is_main:
            from allranks.train.monitoring.banner import epoch_line

            epoch, last = self._state.epoch, self._config.last_epoch
            self._context.say(epoch_line(epoch, last, self._context.metrics, seconds))

    def _audit(self) -> None:
        report = self._context.loader.check() if self._config.audit else None
        if report is not None and (not report.ok or self._config.verbose):
            self._context.say(("" if report.ok else "WARNING: ") + report.message)

    def _validate(self) -> None:
        if self._context.val_loader is not None:
            with self._clock.away():
                self._recorder.flush()
                self._run_validation(self._context.val_loader)

    def _run_validation(self, loader: DistributedLoader) -> None:
        """Validate with the averaged weights when there are any; ranks may exit between batches."""
        context, state = self._context, self._state
        average = context.step_context.average
        self._fire("val_start")
        state.phase = "validate"
        try:
            with average.applied() if average is not None else nullcontext():
                values = evaluate(context, self.coordinator.interruptible(loader), "val")
        except PreemptionRequested:
            state.phase = "train"
            state.epoch_end = state.epoch_end or "validating"
            self._checkpoints.save_and_exit()
        state.phase = "train"
        self.coordinator.note_validated()
        state.epoch_end = "validated" if state.epoch_end == "written" else state.epoch_end
        context.write_metrics(values, kind="val")
        if "val_loss" in values:
            state.values["val_loss"] = values["val_loss"]
        self._fire("val_end")

    def _fire(self, event: str, *args: Any) -> None:
        """Call the hooks of this event, if there are any; their time is not a step's."""
        if self._context.callbacks.has(event):
            with self._clock.aside():
                self._context.fire(event, *args)


def _detach_and_clone(loss: torch.Tensor) -> torch.Tensor:
    return loss.detach().clone()
