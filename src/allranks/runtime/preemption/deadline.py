"""``allranks.deadline()``: the end of the job, for the Trainer and for anybody's own loop.

stop = allranks.deadline()
for step in range(first, last + 1):
    ...
    if stop.near(step):
        save(step)
        stop.leave(step)
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from allranks.errors import Interrupted, UsageError
from allranks.runtime.preemption.communicator import Alone, Unconnected, find_talk
from allranks.runtime.preemption.job_end_time import ask, find_end, until
from allranks.runtime.preemption.loader_workers import shield_workers
from allranks.runtime.preemption.progress_notes import Count, Notes
from allranks.runtime.preemption.signal_flags import Signals
from allranks.runtime.preemption.sync_points import SECONDS, Looks

MARGIN = 30.0
_ASK_AGAIN = 60.0
"""A limit that Slurm has confirmed is not asked for again sooner."""


class Deadline:
    """When this process must leave, and the one step at which all ranks do.

    The end of the job, a signal (TERM, USR1, USR2) to any rank: either makes `near` true on every
    rank at the same step.
    """

    def __init__(self, margin: float = MARGIN) -> None:
        self.margin = margin
        """Seconds kept free before the end of the job, besides what saving takes."""
        self.reason = ""
        """Why the ranks leave; empty as long as they do not."""
        self.save_seconds = 0.0
        """The longest that a save took."""
        self.signals = Signals()
        self._end = find_end(os.environ, may_ask=_is_first())
        self._confirmed = 0.0
        self._hook: Callable[[int], Any] | None = None
        self._looks: Looks | None = None
        self._notes: Notes | None = None
        self._next = 0
        self._count = Count()
        self._began = time.time()
        self._earlier: int | None = None

    # -- for a loop

    def near(self, step: int) -> bool:
        """Whether to save and leave now: the same answer on every rank. Call it once for each step.

        Steps are best counted from the beginning of the training, over all attempts. A loop that
        counts each epoch from 0 leaves in time as well. Most calls only compare numbers; about every
        two seconds the ranks look at each other.
        """
        at = self._count.stepped(step)
        if at < self._next:
            return False
        if self.reason:
            return True
        looks = self._looks = self._looks or self._begin(at)
        wished = self.wanted(looks.talk, looks.gap)
        found = looks.look(at, [float(wished)])[0]
        self._next = looks.next
        if self._is_main:
            self.notes.stepped(self._in_all(at))
        if not found:
            return False
        self.agreed()
        self._next = 0
        if self._hook is not None:
            with self.saving(step):
                self._hook(step)
            self.leave(step)
        return True

    def on_leave(self, save: Callable[[int], Any]) -> Callable[[int], Any]:
        """Have `near` call ``save(step)`` on every rank and leave by itself. Also as a decorator."""
        self._hook = save
        return save

    @contextmanager
    def saving(self, step: int) -> Iterator[None]:
        """Around a save of your own: its duration sets how early to leave, its step is progress."""
        began = time.monotonic()
        yield
        self.saved(step, time.monotonic() - began)

    def saved(self, step: int, seconds: float | None = None) -> None:
        """A checkpoint of this step is on the disk; ``seconds`` is how long that took."""
        self.save_seconds = max(self.save_seconds, seconds or 0.0)
        number = self._count.saved(step)
        if self._looks is not None:
            self._looks.restart(number)
        if self._is_main:
            self.notes.saved(self._in_all(number), self.save_seconds or None)

    def leave(self, step: int) -> NoReturn:
        """End this process on purpose; the next attempt goes on. Call it on every rank."""
        self.agreed()
        self.saved(step)
        number = self._in_all(self._count.saved(step))
        sentence = f"{self.told(step)}; the next attempt goes on from there"
        left = self.interruption(number, sentence)
        if left.code and self._is_main:  # no job script tells it
            print(f"allranks: {sentence}", flush=True)
        raise left

    @property
    def at(self) -> float | None:
        """When the job ends, in seconds since 1970; None when nothing is known to end it."""
        return None if self._end is None else self._end.at

    @property
    def left(self) -> float | None:
        """Seconds until then."""
        return None if self._end is None else self._end.at - time.time()

    # -- for the Trainer

    @property
    def notes(self) -> Notes:
        """What this attempt tells of itself; for rank 0."""
        self._notes = self._notes or Notes()
        return self._notes

    def keep_notes(self, attempt: Path | None) -> None:
        """In the folder of this attempt, which a Trainer may have made where nobody else did."""
        self._notes = Notes(attempt)

    def watch(self) -> bool:
        """Note signals from here on; False in a thread that may not, where only the clock counts."""
        shield_workers()
        return self.signals.watch()

    def lead(self, gap: float = 0.0) -> float:
        """Seconds before the end of the job at which to leave."""
        if self._end is None:
            return 0.0
        margin = min(self.margin, self._end.length / 4)
        return margin + 2 * self.save_seconds + max(gap, min(SECONDS, margin))

    def wanted(self, talk: Alone, gap: float = 0.0) -> bool:
        """Whether this rank wants to leave: it got a signal or, as rank 0, sees the end come."""
        return bool(self.signals.caught) or (talk.rank == 0 and self._is_over(self.lead(gap)))

    def agreed(self) -> None:
        """All ranks leave; find the reason."""
        near = self._end is not None and time.time() >= self._end.at - self.lead() - 60
        if self.signals.caught:
            self.reason = self.reason or self.signals.caught
        elif self._end is not None and near:
            self.reason = self.reason or self._end.what
        self.reason = self.reason or "another rank was told to leave"

    def told(self, step: int) -> str:
        """``saved step 520 on SIGUSR1, 3 min before the end of job 123 (time limit)``."""
        why = f" on {self.reason}" if self.reason == self.signals.caught else ""
        if self._end is None or self.left is None:
            return f"saved step {step}{why or f' because {self.reason}'}"
        return f"saved step {step}{why}, {until(self.left)} before {self._end.what}"

    def interruption(self, step: int, sentence: str) -> Interrupted:
        """What to raise on this rank; rank 0 writes down that the ranks left on purpose."""
        noted = self.notes.interrupted(step, sentence) if self._is_main else _watched()
        return Interrupted(sentence, watched=noted)

    def _is_over(self, lead: float) -> bool:
        """Whether the lead has begun; Slurm is asked first, since limits get extended."""
        if self._end is None or time.time() < self._end.at - lead:
            return False
        if time.time() - self._confirmed > _ASK_AGAIN:
            self._confirmed = time.time()
            self._end = ask(self._end, os.environ)
        return self._end is not None and time.time() >= self._end.at - lead

    def _begin(self, step: int) -> Looks:
        """The first step is done: it began after this object was made, where the step before ended."""
        talk = find_talk()
        if isinstance(talk, Unconnected):
            talk.refuse(*_place())
        shield_workers()
        if self._is_main:
            self.notes.note(first_step=max(step - 1, 0), step=step, began=self._began)
        return Looks(talk, step - 1)

    def _in_all(self, number: int) -> int:
        """The step over all attempts, for rank 0's notes.

        A loop that counts each epoch from 0 does not tell how far the attempts before it came.
        """
        if self._count.repeats and self._earlier is None and self._is_main:
            self._earlier = self.notes.kept_before()
            self.notes.began_later(self._earlier)
        return number + (self._earlier or 0)

    @property
    def _is_main(self) -> bool:
        talk = self._looks.talk if self._looks is not None else find_talk()
        return talk.rank == 0 if talk.size > 1 else _is_first()


_the_one: Deadline | None = None


def deadline() -> Deadline:
    """This process's `Deadline`: TERM, USR1 and USR2 are noted from now on, the job's end is found.

    Call it in the main thread, before the loop. A second call gives the same object.
    """
    found = shared()
    if not found.watch():
        raise UsageError(
            "deadline() watches signals, which only the main thread may: call it there."
        )
    found.signals.stays = True
    return found


def shared() -> Deadline:
    """The same object without watching signals yet."""
    global _the_one
    if _the_one is None:
        _the_one = Deadline()
    return _the_one


def _is_first() -> bool:
    """Whether this is rank 0, which alone asks Slurm: a thousand ranks would be a burden to it."""
    return _place()[0] == 0


def _place() -> tuple[int, int]:
    from allranks.runtime.world import world

    here = world()
    return here.rank, here.size


def _watched() -> bool:
    """Whether allranks started this process, and so looks after what comes next."""
    return bool(os.environ.get("ALLRANKS_ATTEMPT_DIR"))
