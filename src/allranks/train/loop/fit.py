"""Everything around the loop of a ``fit``: loggers, progress bar, checkpoints, signals; closed however it ends."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any

from allranks.errors import Interrupted
from allranks.runs.atomic_files import write_json
from allranks.runs.progress_file import current_attempt
from allranks.runtime.preemption.deadline import shared_deadline
from allranks.train.callbacks.base import Callbacks
from allranks.train.checkpoint.checkpoint_folder import CheckpointStore
from allranks.train.context import TrainContext
from allranks.train.loggers import make_loggers
from allranks.train.loggers.base import Loggers, RunInfo
from allranks.train.loop.checkpoint_policy import CheckpointManager
from allranks.train.loop.fit_setup import build_fit, close_loaders
from allranks.train.loop.resume_point import ResumedFrom, start_or_resume
from allranks.train.loop.training_loop import TrainingLoop
from allranks.train.monitoring.recorder import MetricsRecorder
from allranks.train.step.loss_module import explain_type_error
from allranks.train.trainer_run import (
    attempt_folder,
    checkpoint_folder,
    fit_number,
    lost_attempt,
    present_attempt,
    script_name,
    write_settings,
)


class Fit:
    """One call of ``Trainer.fit``: set up, resumed if there is a checkpoint, run and closed."""

    def __init__(self, context: TrainContext, train: Any, val: Any) -> None:
        self._context = context
        build_fit(context, train, val)
        self._recorder = MetricsRecorder(context)
        store = CheckpointStore(checkpoint_folder(context.folder))
        self.checkpoints = CheckpointManager(context, store, self._recorder.settle)
        self._start = start_or_resume(context, self.checkpoints, store, train, val)

    def run(self) -> None:
        """Train; nothing is trained when the training had finished in an earlier attempt."""
        context, resumed = self._context, self._start.checkpoint
        loop = TrainingLoop(context, self._recorder, self.checkpoints)
        if resumed is not None and resumed.is_over:
            self._report_finished(resumed)
            return
        open_loggers(context, resumed=self._start.continues_logs, logged=self._start.logged)
        if context.world.is_main:
            _print_banner(context, resumed is not None)
            _note_start(context)
        with (
            _telemetry(context),
            closing(self._recorder),
            loop.coordinator.watch_signals(),
            self._surroundings(),
        ):
            try:
                loop.run()
            except TypeError as error:
                raise explain_type_error(error, context.task.loss_fn) from error

    def _report_finished(self, resumed: ResumedFrom) -> None:
        """Make the results of a training that had finished available to what follows ``fit``."""
        context, state = self._context, self._context.state
        self.checkpoints.mark_finished(resumed.path if resumed.own else None)
        context.pending_values = {}  # written at its end
        context.say(
            f"This training had finished at step {state.step}, epoch {state.epoch}: {resumed.path} is "
            "loaded and nothing is trained. Give more epochs or max_steps to continue."
        )
        if context.world.is_main:
            _note_start(context)
            shared_deadline().progress.update(saved_step=state.step, outcome="finished")
        close_loaders(context)

    @contextmanager
    def _surroundings(self) -> Iterator[None]:
        """Run the progress bar, call the hooks of start and end, save the end, close the loggers."""
        context, checkpoints = self._context, self.checkpoints
        stop_bar = _start_progress_bar(context)
        status = "failed"
        try:
            checkpoints.begin()
            context.fire("fit_start")
            checkpoints.check_saveable()
            checkpoints.save_requested()
            yield
            status = "stopped" if context.stop_reason else "finished"
            checkpoints.save_end()
            context.fire("fit_end")
            if context.pending_values:  # logged after the last step
                context.write_metrics({}, kind="epoch")
        except Interrupted:
            status = "interrupted"
            raise
        except BaseException as error:
            checkpoints.cancel_requests()
            context.fire("exception", error)
            raise
        finally:
            checkpoints.close()
            stop_bar()
            context.loggers.close(status)
            if context.world.is_main:
                _draw_curve(context)
            close_loaders(context)
        if context.world.is_main:
            shared_deadline().progress.update(step=context.state.step, outcome="finished")
        if context.stop_reason:
            context.say(f"stopped after step {context.state.step}: {context.stop_reason}")


@contextmanager
def logged_pass(context: TrainContext, kind: str) -> Iterator[None]:
    """Log a validation or test outside of ``fit`` to the same files, and call its hooks."""
    open_loggers(context, resumed=True)
    callbacks = Callbacks(context.task.callbacks)
    try:
        callbacks.fire(f"{kind}_start", context.view)
        yield
        callbacks.fire(f"{kind}_end", context.view)
    finally:
        context.loggers.close("finished")


def open_loggers(
    context: TrainContext, *, resumed: bool, logged: Mapping[str, int] | None = None
) -> None:
    """Start the loggers on rank 0; an error in their names is raised on all ranks."""
    config, here, folder = context.config, context.world, context.folder
    context.loggers = Loggers([])
    made: list[Any] = []
    context.communicator.call_on_rank_zero(lambda: made.extend(make_loggers(config.loggers)))
    if here.is_main:
        context.loggers = Loggers(made, warn=context.say)
        write_settings(folder, config)
        strategy = context.engine.strategy
        if settings := strategy.settings():
            write_json(folder / f"{strategy.name}.json", settings)
        run = RunInfo(
            folder, config.name or script_name(), dict(config.hyperparams), resumed, here.size,
            context.state.step, logged, lost_attempt(folder), fit_number(folder),
        )  # fmt: skip
        context.loggers.start(run)


def _telemetry(context: TrainContext) -> AbstractContextManager[None]:
    """Sample this node while it trains, if no agent does that already."""
    from allranks.runtime.telemetry.sampler import sample_here

    here = context.world
    return sample_here(
        lambda: current_attempt() or attempt_folder(context.folder),
        here.node_rank, here.local_rank, here.local_size,
        context.say if here.is_main else _print_from_node,
    )  # fmt: skip


def _print_from_node(text: str) -> None:
    """Report what only this node knows: rank 0 is on another."""
    print(f"allranks: {os.uname().nodename}: {text}", file=sys.stderr, flush=True)


def _note_start(context: TrainContext) -> None:
    state = context.state
    shared_deadline().set_attempt_folder(present_attempt(context.folder))
    shared_deadline().progress.update(
        first_step=state.step, step=state.step, began=time.time(),
        total_steps=state.total_steps, outcome="running", reason="",
        fit=fit_number(context.folder), saved_step=None,
    )  # fmt: skip


# Only rank 0 imports what only rank 0 prints and draws.


def _print_banner(context: TrainContext, resumed: bool) -> None:
    from allranks.train.monitoring.banner import banner

    for line in banner(context, resumed):
        context.say(line)


def _start_progress_bar(context: TrainContext) -> Callable[[], None]:
    """Start the bar on rank 0; return the function that stops it."""
    if not context.world.is_main or context.config.progress is False:
        return lambda: None
    from allranks.train.monitoring.progress_bar import ProgressBar

    bar = ProgressBar(context.state, enabled=context.config.progress).start()
    before, context.print_line = context.print_line, bar.say

    def stop() -> None:
        bar.stop()
        context.print_line = before

    return stop


def _draw_curve(context: TrainContext) -> None:
    from allranks.train.monitoring.curve_svg import draw_curve

    try:
        draw_curve(context.folder)
    except OSError as error:  # a picture must not hide how the training ended
        context.say(f"The loss curve could not be drawn: {error}")
