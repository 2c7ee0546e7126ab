"""One save after the other, on all ranks alike: started together, written by threads, reported at its end.

What ranks must agree on is exchanged here, in the training's own thread: whether a save is still in
progress anywhere, whether the last one failed, whether the disk has space.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allranks.core.formatting import size
from allranks.core.units import parse_time
from allranks.errors import REPLACED_EXIT_CODE, AllranksError
from allranks.runs.progress_file import AttemptProgress
from allranks.runtime.preemption.deadline import shared_deadline
from allranks.train.checkpoint.async_writer import CheckpointSaver
from allranks.train.checkpoint.checkpoint_folder import LATEST, CheckpointStore
from allranks.train.checkpoint.manifest import SavedCheckpoint, parse_step_folder
from allranks.train.checkpoint.rank_completion import SAVE_CANCELLED
from allranks.train.checkpoint.write_plan import CheckpointState
from allranks.train.context import TrainContext
from allranks.train.loop.save_restore import samples_seen, take_snapshot
from allranks.train.trainer_run import lost_attempt

FINISHED = "finished"
"""A file beside the checkpoints of a training that has ended."""
_MORE, _SPARE = 1.05, 64 << 20
"""Free space that the disk must have: this factor of a checkpoint's bytes, and these bytes."""
_SLOW_DISK = 100e6
"""Bytes a second that any disk of a cluster can take."""
_GROWTH = 3
"""Most optimizers allocate two more numbers for each weight at their first step."""


@dataclass
class SaveDuration:
    """How long a save takes: it decides how early to exit before the end of the job."""

    measured: float = 0.0
    """The longest save of this attempt."""
    before: float = 0.0
    """The longest save of earlier attempts."""
    estimated: float = 0.0

    @property
    def longest(self) -> float:
        """Seconds to allow for."""
        return max(self.measured, self.before) or self.estimated

    def measure(self, seconds: float) -> None:
        """Count a save of this attempt."""
        self.measured = max(self.measured, seconds)

    def estimate(self, snapshot: CheckpointState, size: int) -> None:
        """Estimate from the size of the tensors, before anything was saved."""
        has_state = any(key.startswith("optimizer.") for key in snapshot.tensors)
        self.estimated = snapshot.total_bytes(size) * (1 if has_state else _GROWTH) / _SLOW_DISK

    def recall(self, run: Path, loaded: float) -> None:
        """Take the time of the attempt before, or of the checkpoint that was loaded."""
        attempt = lost_attempt(run)
        known = None if attempt is None else AttemptProgress.read(attempt)
        seconds = known.save_seconds if known is not None else None
        self.before = max(loaded, seconds or 0.0)


class CheckpointWriter:
    """Writes the checkpoints of one ``fit``. Methods are collective unless they say otherwise."""

    def __init__(self, context: TrainContext, store: CheckpointStore) -> None:
        config = context.config
        self._context, self.store = context, store
        self._saver: CheckpointSaver | None = None
        every = config.checkpoint_keep_every
        self._retention: dict[str, Any] = {
            "keep": 1 if config.checkpoint_best_only else config.checkpoint_keep,
            "keep_every": None if every is None else float(parse_time(every)),
        }
        self._token = ""
        self._saving: int | None = None
        """The step of a save whose end has not been reported yet."""
        self.newest: tuple[int, Path | None] = (-1, None)
        """The step that was saved last, unless that failed, and its path (rank 0)."""
        self.last_is_saved = True
        self.duration = SaveDuration()

    def take_over(self, about: Mapping[str, Any]) -> None:
        """Keep earlier starts of this run from publishing. A disk that refuses is tried again later."""
        here, token, problem = self._context.world, "", ""
        if here.is_main:
            try:
                token = self.store.take_over(about)
            except OSError as error:
                problem = f"{self.store.folder} cannot be written: {error.strerror or error}"
        problem = self._context.communicator.broadcast(problem)
        if problem:
            self._warn(self._context.state.step, problem)
            return
        asynchronous = self._context.config.checkpoint_async
        self._token = token
        self._saver = CheckpointSaver(
            self.store, here.rank, here.size, token, asynchronous=asynchronous
        )

    @property
    def is_ready(self) -> bool:
        """Whether this start has taken over the folder; not collective."""
        return self._saver is not None

    def is_busy(self) -> bool:
        """Whether a save is still in progress on any rank."""
        busy = self._saver is not None and self._saver.busy
        return any(self._context.communicator.all_gather(busy))

    def links_of(self, step: int) -> set[str]:
        """Return the names of what was saved of this step; not collective."""
        links = self.store.links().items()
        return {link for link, to in links if link != LATEST and parse_step_folder(to)[0] == step}

    def start(self, links: set[str], finished: bool) -> bool:
        """Copy this step and start writing it; False, with a warning, when that cannot be done.

        Wait for the save before it first.
        """
        begun = self._begin()
        if begun is None or self._saver is None:
            return False
        snapshot, part = begun
        step, is_main = self._context.state.step, self._context.world.is_main
        self._saving = step
        self.newest = (step, self._next_path(step) if is_main else None)
        self._saver.start(
            snapshot, part, self._about(finished), self._published, links=sorted(links),
            **self._retention,
        )  # fmt: skip
        return True

    def wait(self) -> None:
        """Wait for the save in progress and report how it ended, on all ranks alike."""
        context, here, saver = self._context, self._context.world, self._saver
        if self._saving is None or saver is None:
            return
        if here.rank:
            saver.wait()
        ranks = context.communicator
        elsewhere = ranks.all_gather(saver.problem if here.rank else "")
        if any(elsewhere):
            saver.cancel()  # rank 0 need not wait for a file that will not come
        if here.is_main:
            saver.wait()
        end = (saver.problem, saver.taken_over, saver.seconds)
        problem, taken, seconds = ranks.broadcast(end)
        step, self._saving = self._saving, None
        self.duration.measure(seconds)
        self.last_is_saved = not problem
        if taken:
            context.say(f"This start ends here: another one took over. {problem}")
            raise SystemExit(REPLACED_EXIT_CODE)
        if problem:
            self.newest = (-1, None)
            # Rank 0 only knows that others' files did not come; the others know why.
            others = [text for text in elsewhere if text]
            self._warn(step, others[0] if others and SAVE_CANCELLED in problem else problem)
        else:
            context.fire("checkpoint")

    def close(self, timeout: float) -> None:
        """Not collective: give a save in progress on this rank some time, and free the copies' memory."""
        if self._saver is None:
            return
        if self._saving is not None:
            self._saver.wait(timeout=timeout)
        self._saver.close()

    def _begin(self) -> tuple[CheckpointState, Path] | None:
        """Return what to save and the folder that rank 0 made for it; None, with a warning, on failure."""
        here, made, part, problem = self._context.world, None, "", ""
        try:
            made = take_snapshot(self._context)
            if here.is_main:
                part = str(self._make_part(made.total_bytes(here.size)))
        except (OSError, AllranksError) as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001  of a callback's state_dict; the other ranks wait
            problem = f"{type(error).__name__}: {error}"
        found = self._context.communicator.all_gather((part, problem))
        problems = [text for _, text in found if text]
        if made is not None and not problems:
            return made, Path(found[0][0])
        if part:
            self.store.discard(Path(part))
        self._warn(self._context.state.step, problems[0])
        return None

    def _make_part(self, held: int) -> Path:
        needed, free = int(_MORE * held) + _SPARE, self.store.free_bytes()
        if free < needed:
            raise AllranksError(
                f"it needs {size(needed)}, and {self.store.folder} has {size(free)} left"
            )
        return self.store.stage(self._context.state.step, self._token)

    def _next_path(self, step: int) -> Path:
        """Return where the next save of this step will be: an earlier one is not overwritten."""
        there = [parse_step_folder(path.name) for path in self.store.folder.glob("step-*")]
        copy = max((copy for at, copy in there if at == step), default=0) + 1
        return self.store.folder / (f"step-{step:08d}" + (f"-{copy}" if copy > 1 else ""))

    def _warn(self, step: int, problem: str) -> None:
        if not self._context.world.is_main:
            return
        steps = self.store.folder.glob("step-*")
        has_older = any(parse_step_folder(path.name)[0] >= 0 for path in steps)
        there = "Earlier checkpoints are intact" if has_older else "There is none yet"
        self._context.say(
            f"WARNING: the checkpoint of step {step} could not be written: {problem.rstrip('.')}. "
            f"{there}; training continues."
        )

    def _about(self, finished: bool) -> dict[str, Any]:
        context = self._context
        return {
            "step": context.state.step,
            "epoch": context.state.epoch,
            "samples": samples_seen(context),
            "strategy": context.engine.strategy.name,
            "finished": finished,
            "metrics": dict(context.metrics),
        }

    def _published(self, saved: SavedCheckpoint) -> None:
        """Called in a thread of rank 0 when the checkpoint is on the disk."""
        assert saved.manifest is not None
        self.duration.measure(saved.manifest.seconds)
        shared_deadline().progress.record_save(saved.step, self.duration.measured)


def note_finished(folder: Path, finished: bool = True) -> None:
    """Mark a training that saves nothing at its end as finished: a later start resumes from the best."""
    try:
        if finished:
            (folder / FINISHED).touch()
        else:
            (folder / FINISHED).unlink(missing_ok=True)
    except OSError:
        return  # a disk that takes no checkpoint was reported already
