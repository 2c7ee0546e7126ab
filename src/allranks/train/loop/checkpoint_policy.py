"""The checkpoints of a ``fit``: what is saved when, from its first step to its end and after.

What hooks request is saved after a whole step or epoch, when every hook is done: a checkpoint in the
middle of an event, or of an accumulated step, could not be resumed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from allranks.errors import AllranksError, UsageError
from allranks.runtime.preemption.deadline import shared_deadline
from allranks.train.checkpoint.checkpoint_folder import EARLIER, LATEST, QUARANTINE, CheckpointStore
from allranks.train.checkpoint.manifest import parse_step_folder
from allranks.train.context import TrainContext
from allranks.train.loop.collective_save import FINISHED, CheckpointWriter, note_finished
from allranks.train.loop.save_restore import take_snapshot

_NAME = re.compile(r"^[A-Za-z0-9_][\w.+=-]*\Z")
PATIENCE_SECONDS = (5.0, 120.0)
"""Seconds, at least and at most, for which a failing training waits for its last checkpoint."""


class CheckpointManager:
    """The checkpoints of one ``fit``. Methods are collective unless they say otherwise."""

    def __init__(
        self, context: TrainContext, store: CheckpointStore, settle_metrics: Callable[[], None]
    ) -> None:
        """``settle_metrics`` writes what is still being measured, so that it belongs to the checkpoint."""
        self._context = context
        self._writer = CheckpointWriter(context, store)
        self._settle_metrics = settle_metrics
        self._requested: set[str | None] = set()
        """What hooks asked for since the last save; None is one without a name."""
        self._training = self._finished = False
        self._warned_of_skip = False

    @property
    def folder(self) -> Path:
        """Where they are. Not collective."""
        return self._writer.store.folder

    @property
    def save_seconds(self) -> float:
        """How long a save may take. Not collective."""
        return self._writer.duration.longest

    # -- from the first step to the end

    def take_over(self, about: Mapping[str, Any]) -> None:
        """Keep earlier starts of this run from publishing. A disk that refuses is tried again later."""
        self._writer.take_over(about)

    def recall_duration(self, loaded_seconds: float) -> None:
        """Not collective: how long saves took in the attempt before, or for what was loaded."""
        self._writer.duration.recall(self._context.folder, loaded_seconds)

    def begin(self) -> None:
        """Not collective: from now on, what is requested waits until the step is complete."""
        self._training = True

    def check_saveable(self) -> None:
        """Raise for what cannot be saved before the first step, and not after hours."""
        if not self._context.config.checkpoint:
            return
        size, problem = self._context.world.size, ""
        try:
            self._writer.duration.estimate(take_snapshot(self._context), size)
        except AllranksError as error:
            problem = str(error)
        for found in filter(None, self._context.communicator.all_gather(problem)):
            raise UsageError(found)

    def mark_finished(self, own: Path | None) -> None:
        """Not collective: nothing will be trained; ``own`` is its checkpoint in this folder."""
        self._finished = True
        if own is not None:
            known = own if self._context.world.is_main else None
            self._writer.newest = (self._context.state.step, known)

    def save_end(self) -> None:
        """Save the end of the training, with all that was requested; later saves are of a finished one."""
        config, self._finished = self._context.config, True
        if config.checkpoint and not config.checkpoint_best_only:
            self.save(None, wanted=True)
        self.save_requested()
        self.wait()
        self._training = False
        if config.checkpoint_best_only and self._context.world.is_main:
            note_finished(self.folder)

    def cancel_requests(self) -> None:
        """Not collective: drop what was requested; the training has failed."""
        self._training = False
        self._requested.clear()

    def close(self) -> None:
        """Not collective: give a save in progress on this rank the time that it takes."""
        self.cancel_requests()
        self._writer.close(
            min(max(PATIENCE_SECONDS[0], 2 * self.save_seconds), PATIENCE_SECONDS[1])
        )

    # -- saves

    def request(self, name: str | None) -> Path | None:
        """Save now or, during a training, when the current step is complete.

        Return its path on rank 0: the link of a named one; without a name it is known only outside of a
        training.
        """
        check_name(name)
        self._refuse_averaged_weights()
        if not self._training:
            return self.save(name, wanted=name is not None)
        self._requested.add(name)
        self._context.state.next_due = 0
        return self.folder / name if name and self._context.world.is_main else None

    @property
    def is_requested(self) -> bool:
        """Whether a hook asked for something that is not saved yet. Not collective."""
        return bool(self._requested)

    def save_requested(self) -> None:
        """Save what hooks asked for, if they did."""
        if self._requested:
            self.save(None, wanted=False)

    def save(self, name: str | None, *, wanted: bool) -> Path | None:
        """Save this step, with all that hooks asked for; ``name`` is a link to it that keeps it for good.

        Return when the copy is made, with the path of the checkpoint (rank 0; None when it cannot be
        made). One that is neither ``wanted`` nor named is skipped while another save is in progress, and
        when this step is saved already.
        """
        writer, step = self._writer, self._context.state.step
        names = {each for each in (name, *self._requested) if each}
        self._requested.clear()
        if not writer.is_ready:
            writer.take_over({})
        if not (wanted or names) and self._is_skipped():
            return writer.newest[1] if writer.newest[0] == step else None
        writer.wait()
        writer.last_is_saved = False
        if not writer.is_ready or not self._start(names):
            return None
        path = writer.newest[1]
        if not self._training or self._finished or not self._context.config.checkpoint_async:
            writer.wait()
        return self.folder / name if name and path else path

    def _start(self, names: set[str]) -> bool:
        self._settle_metrics()
        return self._writer.start(self._links(names), self._finished)

    def wait(self) -> bool:
        """Wait until all is published; return whether the last save is on the disk."""
        self._writer.wait()
        return self._writer.last_is_saved

    def save_and_exit(self) -> NoReturn:
        """Save this step, wait until it is on the disk, and end all ranks on purpose, to be requeued."""
        context, deadline, began = self._context, shared_deadline(), time.monotonic()
        step = context.state.step
        deadline.resolve_reason()
        self.save(None, wanted=True)
        if not self.wait():
            problem = f"the job is about to end ({deadline.reason}) and step {step} was not saved"
            if context.world.is_main:
                deadline.progress.update(step=step, outcome="failed", reason=problem)
            raise AllranksError(
                f"{problem[0].upper()}{problem[1:]}.\nThe steps since the last checkpoint are lost; "
                f"check the disk of {context.folder}."
            )
        if context.world.is_main:
            deadline.record_save(step, time.monotonic() - began)
        sentence = f"{deadline.describe_save(step)}; the next attempt resumes from there"
        context.say(sentence)
        raise deadline.record_interruption(step, sentence)

    def _is_skipped(self) -> bool:
        """Whether this step is saved already, or a save is in progress on any rank (reported once)."""
        step = self._context.state.step
        if self._writer.newest[0] == step:
            return True
        if not self._writer.is_busy():
            return False
        if not self._warned_of_skip:
            self._warned_of_skip = True
            self._context.say(
                f"The checkpoint of step {step} is skipped: the one before it is still being written. "
                "Save less often, or to a faster disk; this is reported once."
            )
        return True

    def _links(self, names: set[str]) -> set[str]:
        """Return the requested names and, during a training, those of an earlier save of this step."""
        if not self._context.world.is_main:
            return set()
        # The weights of a step are the same; after the end they may have been changed.
        earlier = self._writer.links_of(self._context.state.step) if self._training else set()
        return names | earlier

    def _refuse_averaged_weights(self) -> None:
        average = self._context.step_context.average
        if average is not None and average.is_applied:
            raise UsageError(
                "save_checkpoint() inside averaged(): a checkpoint holds the trained weights and the "
                "average beside them.\nCall it outside of the block; to write the average alone: "
                "allranks checkpoints --export FILE --average"
            )


def check_name(name: str | None) -> None:
    """Raise for what cannot be the name of a link beside the steps."""
    if name is None:
        return
    taken = (
        name in (LATEST, QUARANTINE, EARLIER, FINISHED, "owner.json")
        or parse_step_folder(name)[0] >= 0
    )
    if taken or not _NAME.match(name):
        why = "that name is taken" if taken else "use letters, digits, '-', '_' and '.'"
        raise UsageError(f"save_checkpoint({name!r}): {why}. For example save_checkpoint('mine').")
