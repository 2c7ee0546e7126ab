"""All workers of a Keras ``fit`` exit at the same batch before the job ends."""

from __future__ import annotations

from typing import Any

from allranks.runtime.preemption.deadline import shared_deadline
from allranks.runtime.preemption.flag_exchange import SyncPoints
from allranks.runtime.world import world
from allranks.runtime.world.communicator import (
    Communicator,
    SingleProcess,
    TensorFlowCommunicator,
)


class GracefulExit:
    """Counts batches and decides when all workers exit."""

    def __init__(self, tf: Any, model: Any) -> None:
        here = world()
        communicator: Communicator = SingleProcess()
        if here.size > 1:
            communicator = TensorFlowCommunicator(tf, model.distribute_strategy, here)
        self._deadline = shared_deadline()
        self._deadline.watch_signals()
        self.step = _iterations(model)
        self._sync_points = SyncPoints(communicator, self.step)
        self._rank = communicator.rank
        if self._rank == 0:
            self._deadline.progress.update(first_step=self.step, step=self.step)

    def after_batch(self) -> bool:
        """Count a batch; whether to save and exit now. The same on every worker."""
        self.step += 1
        return self.step >= self._sync_points.next_step and self._should_stop()

    def after_epoch(self, seconds: float) -> bool:
        """Record an epoch that was saved in so many seconds; whether to exit now."""
        self._record_save(seconds)
        return self._should_stop()

    def exit(self, seconds: float | None = None) -> None:
        """End this worker; ``seconds`` is what the save took, None when none was needed."""
        deadline = self._deadline
        deadline.resolve_reason()
        if seconds is not None:
            self._record_save(seconds)
        sentence = f"{deadline.describe_save(self.step)}; the next attempt resumes from there"
        if self._rank == 0:
            print(f"allranks: {sentence}", flush=True)
        raise deadline.record_interruption(self.step, sentence)

    def end(self) -> None:
        """``fit`` is over: TERM ends the process again."""
        self._deadline.signals.restore_term()

    def _should_stop(self) -> bool:
        points = self._sync_points
        flag = self._deadline.wants_to_stop(self._rank, points.longest_gap)
        if self._rank == 0:
            self._deadline.progress.record_step(self.step)
        return bool(points.sync(self.step, [float(flag)], wait=True)[0])

    def _record_save(self, seconds: float) -> None:
        deadline = self._deadline
        deadline.save_seconds = max(deadline.save_seconds, seconds)
        self._sync_points.exclude_time(self.step)
        if self._rank == 0:
            deadline.progress.record_save(self.step, deadline.save_seconds)


def _iterations(model: Any) -> int:
    """Return the steps that the optimizer has made, also before this process."""
    made = getattr(model.optimizer, "iterations", None)
    return 0 if made is None else int(made.numpy())
