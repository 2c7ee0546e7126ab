"""Saving during a ``fit``: all ranks decide alike, copy, and train on while threads write.

What ranks must agree on is exchanged here, in the training's own thread: whether a save is still under
way anywhere, whether the last one failed, whether there is room.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allranks.checkpoint.gather import GIVEN_UP
from allranks.checkpoint.saver import Saver, Snapshot, bytes_of
from allranks.checkpoint.store import EARLIER, LATEST, QUARANTINE, Saved, Store, place
from allranks.data.agree import gathered
from allranks.errors import REPLACED, AllranksError, UsageError
from allranks.leaving.deadline import shared
from allranks.train import resuming
from allranks.train.finding import FINISHED
from allranks.units import parse_time

if TYPE_CHECKING:
    from allranks.train.loop import Fit
    from allranks.train.trainer import Trainer

_MORE, _SPARE = 1.05, 64 << 20
"""The disk must have room for this much more than a checkpoint's bytes."""
_PATIENCE = 5.0
"""Seconds that a training which fails gives its last checkpoint."""
_NAME = re.compile(r"^[A-Za-z0-9_][\w.+=-]*$")


class Saving:
    """The checkpoints of one ``fit``. Methods are collective unless they say otherwise."""

    def __init__(self, trainer: Trainer, fit: Fit, store: Store) -> None:
        config = trainer.config
        self._trainer, self._fit, self._store = trainer, fit, store
        self._saver: Saver | None = None
        every = config.checkpoint_keep_every
        self._keeping: dict[str, Any] = {
            "keep": config.checkpoint_keep,
            "keep_every": None if every is None else float(parse_time(every)),
        }
        self._token = ""
        self._under_way: int | None = None
        """The step of a save of which the end has not been told yet."""
        self._newest: int | None = None
        """The step that was saved last, unless that failed."""
        self._told_skipping = False
        self._last_is_saved = True
        self._is_over = False
        self.longest = 0.0
        """Seconds of the longest save so far."""

    @property
    def folder(self) -> Path:
        """Where they are. Not collective."""
        return self._store.folder

    def take_over(self, about: Mapping[str, Any]) -> None:
        """From now on no earlier start of this run can publish. A disk that refuses is asked again."""
        here, token, problem = self._trainer.world, "", ""
        if here.is_main:
            try:
                token = self._store.take_over(about)
            except OSError as error:
                problem = f"{self._store.folder} cannot be written: {error.strerror or error}"
        problem = gathered(problem, here.size)[0]
        if problem:
            self._warn(self._fit.state.step, problem)
            return
        asynchronous = self._trainer.config.checkpoint_async
        self._token = token
        self._saver = Saver(self._store, here.rank, here.size, token, asynchronous=asynchronous)

    def save(self, name: str | None, *, wanted: bool, finished: bool = False) -> Path | None:
        """Save this step; ``name`` is a link to it that keeps it for good.

        Returns when the copy is made, with the place where the checkpoint will be (rank 0; None when it
        cannot be made). One that is not ``wanted`` is left out while another is still under way, and
        when this step is saved already.
        """
        _check_name(name)
        if self._saver is None:
            self.take_over({})
        if not wanted and self._left_out():
            return None
        self._last_is_saved = False
        if self._saver is None:
            return None
        self._settle()
        self._trainer._settle_metrics()
        snapshot = resuming.snapshot(self._trainer, self._fit)
        part = self._begin(snapshot)
        self._last_is_saved = False
        if part is None:
            return None
        self._under_way = self._newest = self._fit.state.step
        about, links = self._about(finished), self._links(name)
        self._saver.start(snapshot, part, about, self._published, links=links, **self._keeping)
        if self._is_over or not self._trainer.config.checkpoint_async:
            self._settle()
        path = self._store.folder / (name or f"step-{self._fit.state.step:08d}")
        return path if self._trainer.world.is_main else None

    def finish(self) -> bool:
        """Wait until all is published; whether the last save is on the disk."""
        self._settle()
        return self._last_is_saved

    def close(self) -> None:
        """Not collective: give what is under way on this rank a moment to end. Later saves are waited for."""
        self._is_over = True
        if self._saver is not None and self._under_way is not None:
            self._saver.wait(timeout=_PATIENCE)

    # -- what ranks agree on

    def _left_out(self) -> bool:
        """Whether this step is saved already, or a save is still under way on any rank (told once)."""
        if self._newest == self._fit.state.step:
            return True
        busy = self._saver is not None and self._saver.busy
        if not any(gathered(busy, self._trainer.world.size)):
            return False
        if not self._told_skipping:
            self._told_skipping = True
            self._trainer.say(
                f"The checkpoint of step {self._fit.state.step} is left out: the one before it is still "
                "being written. Save less often, or to a faster disk; this is said once."
            )
        return True

    def _settle(self) -> None:
        """Wait for the save under way and tell how it ended, on all ranks alike."""
        here, saver = self._trainer.world, self._saver
        if self._under_way is None or saver is None:
            return
        if here.rank:
            saver.wait()
        elsewhere = gathered(saver.problem if here.rank else "", here.size)
        if any(elsewhere):
            saver.cancel()  # rank 0 need not wait for a file that will not come
        if here.is_main:
            saver.wait()
        end = (saver.problem, saver.taken_over, saver.seconds)
        problem, taken, seconds = gathered(end, here.size)[0]
        step, self._under_way = self._under_way, None
        self.longest = max(self.longest, seconds)
        self._last_is_saved = not problem
        if taken:
            self._trainer.say(f"This start ends here: another one took over. {problem}")
            raise SystemExit(REPLACED)
        if problem:
            self._newest = None
            # Rank 0 tells of others' files that they did not come, the others why.
            others = [text for text in elsewhere if text]
            self._warn(step, others[0] if others and GIVEN_UP in problem else problem)
        else:
            self._fit.callbacks.fire("checkpoint", self._trainer)

    def _begin(self, snapshot: Snapshot) -> Path | None:
        """The folder to write to, made by rank 0; None, told there, when that cannot be."""
        part, here = None, self._trainer.world
        if here.is_main:
            try:
                part = str(self._make_part(bytes_of(snapshot, here.size)))
            except (OSError, AllranksError) as error:
                self._warn(self._fit.state.step, str(error))
        part = gathered(part, here.size)[0]
        return None if part is None else Path(part)

    def _make_part(self, size: int) -> Path:
        needed, free = int(_MORE * size) + _SPARE, self._store.free()
        if free < needed:
            raise AllranksError(
                f"it needs {_mebibytes(needed)}, and {self._store.folder} has {_mebibytes(free)} left"
            )
        return self._store.stage(self._fit.state.step, self._token)

    def _warn(self, step: int, problem: str) -> None:
        self._trainer.say(
            f"WARNING: the checkpoint of step {step} could not be written: {problem.rstrip('.')}. "
            "The ones before it are intact and training goes on."
        )

    # -- what is written

    def _about(self, finished: bool) -> dict[str, Any]:
        state, trainer = self._fit.state, self._trainer
        return {
            "step": state.step,
            "epoch": state.epoch,
            "samples": resuming.samples_seen(self._fit),
            "strategy": self._fit.engine.strategy.name,
            "finished": finished,
            "metrics": dict(trainer.metrics),
        }

    def _links(self, name: str | None) -> list[str]:
        """Its own name, and those of an earlier save of this very step: the weights are the same."""
        if not self._trainer.world.is_main:
            return []
        step = self._fit.state.step
        there = self._store.links()
        older = {link for link, to in there.items() if link != LATEST and place(to)[0] == step}
        return sorted(older | ({name} if name else set()))

    def _published(self, saved: Saved) -> None:
        """In the thread of rank 0: the checkpoint is on the disk."""
        assert saved.manifest is not None
        self.longest = max(self.longest, saved.manifest.seconds)
        shared().notes.saved(saved.step, self.longest)


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"


def _check_name(name: str | None) -> None:
    if name is None:
        return
    taken = name in (LATEST, QUARANTINE, EARLIER, FINISHED, "owner.json") or place(name)[0] >= 0
    if taken or not _NAME.match(name):
        why = "that name is taken" if taken else "letters, digits, '-', '_' and '.' make a name"
        raise UsageError(f"save_checkpoint({name!r}): {why}. For example save_checkpoint('mine').")
