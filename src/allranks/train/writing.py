"""One save after the other, on all ranks alike: begun together, written by threads, told when it ended.

What ranks must agree on is exchanged here, in the training's own thread: whether a save is still under
way anywhere, whether the last one failed, whether there is room.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allranks.core.formatting import size
from allranks.core.units import parse_time
from allranks.errors import REPLACED_EXIT_CODE, AllranksError
from allranks.runtime.preemption.deadline import shared_deadline
from allranks.runtime.world.communicator import get_communicator
from allranks.train import resuming
from allranks.train.checkpoint.completion_notes import SAVE_CANCELLED
from allranks.train.checkpoint.manifest import SavedCheckpoint
from allranks.train.checkpoint.saver import CheckpointSaver
from allranks.train.checkpoint.store import CheckpointStore
from allranks.train.checkpoint.write_plan import CheckpointState
from allranks.train.checkpoint_names import any_there, next_place
from allranks.train.pace import Pace

if TYPE_CHECKING:
    from allranks.train.loop import Fit
    from allranks.train.trainer import Trainer

_MORE, _SPARE = 1.05, 64 << 20
"""The disk must have room for this much more than a checkpoint's bytes."""


class Writing:
    """Writes the checkpoints of one ``fit``. Methods are collective unless they say otherwise."""

    def __init__(self, trainer: Trainer, fit: Fit, store: CheckpointStore) -> None:
        config = trainer.config
        self._trainer, self._fit, self.store = trainer, fit, store
        self._saver: CheckpointSaver | None = None
        every = config.checkpoint_keep_every
        self._keeping: dict[str, Any] = {
            "keep": 1 if config.checkpoint_best_only else config.checkpoint_keep,
            "keep_every": None if every is None else float(parse_time(every)),
        }
        self._token = ""
        self._under_way: int | None = None
        """The step of a save of which the end has not been told yet."""
        self.newest: tuple[int, Path | None] = (-1, None)
        """The step that was saved last, unless that failed, and its place (rank 0)."""
        self.last_is_saved = True
        self.pace = Pace()

    def take_over(self, about: Mapping[str, Any]) -> None:
        """From now on no earlier start of this run can publish. A disk that refuses is asked again."""
        here, token, problem = self._trainer.world, "", ""
        if here.is_main:
            try:
                token = self.store.take_over(about)
            except OSError as error:
                problem = f"{self.store.folder} cannot be written: {error.strerror or error}"
        problem = get_communicator(here.size).all_gather(problem)[0]
        if problem:
            self._warn(self._fit.state.step, problem)
            return
        asynchronous = self._trainer.config.checkpoint_async
        self._token = token
        self._saver = CheckpointSaver(
            self.store, here.rank, here.size, token, asynchronous=asynchronous
        )

    @property
    def is_ready(self) -> bool:
        """Whether the folder is this start's; not collective."""
        return self._saver is not None

    def is_busy(self) -> bool:
        """Whether a save is still under way on any rank."""
        busy = self._saver is not None and self._saver.busy
        return any(get_communicator(self._trainer.world.size).all_gather(busy))

    def start(self, links: set[str], finished: bool) -> bool:
        """Copy this step, and have it written; False, told, when that cannot be.

        The save before must be settled.
        """
        self._trainer._settle_metrics()
        begun = self._begin()
        if begun is None or self._saver is None:
            return False
        snapshot, part = begun
        step, is_main = self._fit.state.step, self._trainer.world.is_main
        self._under_way = step
        self.newest = (step, next_place(self.store, step) if is_main else None)
        self._saver.start(
            snapshot, part, self._about(finished), self._published, links=sorted(links),
            **self._keeping,
        )  # fmt: skip
        return True

    def settle(self) -> None:
        """Wait for the save under way and tell how it ended, on all ranks alike."""
        here, saver = self._trainer.world, self._saver
        if self._under_way is None or saver is None:
            return
        if here.rank:
            saver.wait()
        elsewhere = get_communicator(here.size).all_gather(saver.problem if here.rank else "")
        if any(elsewhere):
            saver.cancel()  # rank 0 need not wait for a file that will not come
        if here.is_main:
            saver.wait()
        end = (saver.problem, saver.taken_over, saver.seconds)
        problem, taken, seconds = get_communicator(here.size).all_gather(end)[0]
        step, self._under_way = self._under_way, None
        self.pace.measure(seconds)
        self.last_is_saved = not problem
        if taken:
            self._trainer.say(f"This start ends here: another one took over. {problem}")
            raise SystemExit(REPLACED_EXIT_CODE)
        if problem:
            self.newest = (-1, None)
            # Rank 0 tells of others' files that they did not come, the others why.
            others = [text for text in elsewhere if text]
            self._warn(step, others[0] if others and SAVE_CANCELLED in problem else problem)
        else:
            self._fit.callbacks.fire("checkpoint", self._trainer)

    def close(self, timeout: float) -> None:
        """Not collective: give what is under way on this rank some time; the copies' memory is freed."""
        if self._saver is None:
            return
        if self._under_way is not None:
            self._saver.wait(timeout=timeout)
        self._saver.close()

    def _begin(self) -> tuple[CheckpointState, Path] | None:
        """What to save, and the folder that rank 0 made for it; None, told, when either cannot be had."""
        here, made, part, problem = self._trainer.world, None, "", ""
        try:
            made = resuming.snapshot(self._trainer, self._fit)
            if here.is_main:
                part = str(self._make_part(made.total_bytes(here.size)))
        except (OSError, AllranksError) as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001  of a callback's state_dict; the other ranks wait
            problem = f"{type(error).__name__}: {error}"
        told = get_communicator(here.size).all_gather((part, problem))
        problems = [text for _, text in told if text]
        if made is not None and not problems:
            return made, Path(told[0][0])
        if part:
            self.store.discard(Path(part))
        self._warn(self._fit.state.step, problems[0])
        return None

    def _make_part(self, held: int) -> Path:
        needed, free = int(_MORE * held) + _SPARE, self.store.free_bytes()
        if free < needed:
            raise AllranksError(
                f"it needs {size(needed)}, and {self.store.folder} has {size(free)} left"
            )
        return self.store.stage(self._fit.state.step, self._token)

    def _warn(self, step: int, problem: str) -> None:
        if not self._trainer.world.is_main:
            return
        there = "The ones before it are intact" if any_there(self.store) else "There is none yet"
        self._trainer.say(
            f"WARNING: the checkpoint of step {step} could not be written: {problem.rstrip('.')}. "
            f"{there}; training goes on."
        )

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

    def _published(self, saved: SavedCheckpoint) -> None:
        """In the thread of rank 0: the checkpoint is on the disk."""
        assert saved.manifest is not None
        self.pace.measure(saved.manifest.seconds)
        shared_deadline().progress.record_save(saved.step, self.pace.measured)
