"""The checkpoints of a ``fit``: what is saved when, from its first step to its end and after.

What hooks ask for is saved where a step or an epoch is whole and every hook is done: a checkpoint of half
an event, or of half an accumulated step, could not be resumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allranks.errors import AllranksError, UsageError
from allranks.runtime.world.communicator import get_communicator
from allranks.train import resuming
from allranks.train.checkpoint.store import CheckpointStore
from allranks.train.checkpoint_names import check_name, links_of
from allranks.train.finding import note_finished
from allranks.train.writing import Writing

if TYPE_CHECKING:
    from allranks.train.loop import Fit
    from allranks.train.trainer import Trainer

PATIENCE_SECONDS = (5.0, 120.0)
"""Seconds, at least and at most, that a training which fails gives its last checkpoint."""


class Saving:
    """The checkpoints of one ``fit``. Methods are collective unless they say otherwise."""

    def __init__(self, trainer: Trainer, fit: Fit, store: CheckpointStore) -> None:
        self._trainer, self._fit = trainer, fit
        self._writing = Writing(trainer, fit, store)
        self._asked: set[str | None] = set()
        """What hooks asked for since the last save; None is one without a name."""
        self._training = self._finished = False
        self._told_skipping = False

    @property
    def folder(self) -> Path:
        """Where they are. Not collective."""
        return self._writing.store.folder

    @property
    def longest(self) -> float:
        """Seconds that a save may take. Not collective."""
        return self._writing.pace.longest

    # -- the course of a training

    def take_over(self, about: Mapping[str, Any]) -> None:
        """From now on no earlier start of this run can publish. A disk that refuses is asked again."""
        self._writing.take_over(about)

    def look_back(self, loaded_seconds: float) -> None:
        """Not collective: how long saves took before, in the attempt before this one or for what was loaded."""
        self._writing.pace.look_back(self._trainer.folder, loaded_seconds)

    def begin(self) -> None:
        """Not collective: from now on what is asked for waits until it is whole."""
        self._training = True

    def rehearse(self) -> None:
        """What cannot be saved is told before the first step and not after hours."""
        if not self._trainer.config.checkpoint:
            return
        here, problem = self._trainer.world, ""
        try:
            snapshot = resuming.snapshot(self._trainer, self._fit)
            self._writing.pace.guess(snapshot, here.size)
        except AllranksError as error:
            problem = str(error)
        for told in filter(None, get_communicator(here.size).all_gather(problem)):
            raise UsageError(told)

    def had_finished(self, own: Path | None) -> None:
        """Not collective: nothing will be trained; ``own`` is the checkpoint of it in this folder."""
        self._finished = True
        if own is not None:
            known = own if self._trainer.world.is_main else None
            self._writing.newest = (self._fit.state.step, known)

    def end(self) -> None:
        """Save the training's end, with all that was asked for; later saves say that it had ended."""
        config, self._finished = self._trainer.config, True
        if config.checkpoint and not config.checkpoint_best_only:
            self.save(None, wanted=True)
        self.save_asked()
        self.finish()
        self._training = False
        if config.checkpoint_best_only and self._trainer.world.is_main:
            note_finished(self.folder)

    def fail(self) -> None:
        """Not collective: the moment for which something was asked will not come."""
        self._training = False
        self._asked.clear()

    def close(self) -> None:
        """Not collective: give what is under way on this rank the time that it takes."""
        self.fail()
        self._writing.close(min(max(PATIENCE_SECONDS[0], 2 * self.longest), PATIENCE_SECONDS[1]))

    # -- saves

    def ask(self, name: str | None) -> Path | None:
        """Save now or, in a training, where the present step is whole.

        The place where it will be, on rank 0: of a named one its link; without a name it is known only
        outside of a training.
        """
        check_name(name)
        self._refuse_average()
        if not self._training:
            return self.save(name, wanted=name is not None)
        self._asked.add(name)
        if self._trainer._loop is not None:
            self._trainer._loop.stop_next()
        return self.folder / name if name and self._trainer.world.is_main else None

    @property
    def is_asked(self) -> bool:
        """Whether a hook asked for something that is not saved yet. Not collective."""
        return bool(self._asked)

    def save_asked(self) -> None:
        """Save what hooks asked for, if they did."""
        if self._asked:
            self.save(None, wanted=False)

    def save(self, name: str | None, *, wanted: bool) -> Path | None:
        """Save this step, with all that hooks asked for; ``name`` is a link to it that keeps it for good.

        Returns when the copy is made, with the place where the checkpoint will be (rank 0; None when it
        cannot be made). One that is neither ``wanted`` nor named is left out while another is still under
        way, and when this step is saved already.
        """
        writing, step = self._writing, self._fit.state.step
        names = {each for each in (name, *self._asked) if each}
        self._asked.clear()
        if not writing.is_ready:
            writing.take_over({})
        if not (wanted or names) and self._left_out():
            return writing.newest[1] if writing.newest[0] == step else None
        writing.settle()
        writing.last_is_saved = False
        if not writing.is_ready or not writing.start(self._links(names), self._finished):
            return None
        path = writing.newest[1]
        if not self._training or self._finished or not self._trainer.config.checkpoint_async:
            writing.settle()
        return self.folder / name if name and path else path

    def finish(self) -> bool:
        """Wait until all is published; whether the last save is on the disk."""
        self._writing.settle()
        return self._writing.last_is_saved

    def _left_out(self) -> bool:
        """Whether this step is saved already, or a save is still under way on any rank (told once)."""
        step = self._fit.state.step
        if self._writing.newest[0] == step:
            return True
        if not self._writing.is_busy():
            return False
        if not self._told_skipping:
            self._told_skipping = True
            self._trainer.say(
                f"The checkpoint of step {step} is left out: the one before it is still being written. "
                "Save less often, or to a faster disk; this is said once."
            )
        return True

    def _links(self, names: set[str]) -> set[str]:
        """Those asked for and, in a training, those of an earlier save of this very step."""
        if not self._trainer.world.is_main:
            return set()
        # The weights of a step are the same; after the end they may have been changed.
        return names | (
            links_of(self._writing.store, self._fit.state.step) if self._training else set()
        )

    def _refuse_average(self) -> None:
        average = self._fit.parts.average
        if average is not None and average.is_applied:
            raise UsageError(
                "save_checkpoint() inside averaged(): a checkpoint holds the weights that are trained, "
                "and the average beside them.\nCall it outside of the block; the average alone is "
                "written by: allranks checkpoints --export FILE --average"
            )
