"""All workers of a Keras ``fit`` leave at the same batch before the job ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from allranks.runtime.preemption.communicator import Alone, Numbers
from allranks.runtime.preemption.deadline import shared
from allranks.runtime.preemption.sync_points import Looks
from allranks.runtime.world import world


class Workers(Alone):
    """The workers of a strategy: numbers are summed by its own collective."""

    def __init__(self, tf: Any, strategy: Any) -> None:
        here = world()
        self._tf, self._strategy = tf, strategy
        self.rank, self.size = here.rank, here.size
        self._replicas = strategy.num_replicas_in_sync // here.size

    def start(self, numbers: Sequence[float]) -> Callable[[], Numbers]:
        def of(context: Any) -> Any:
            first = context.replica_id_in_sync_group % self._replicas == 0
            own = list(numbers) if first else [0.0] * len(numbers)
            return self._tf.constant(own, dtype=self._tf.float64)

        values = self._strategy.experimental_distribute_values_from_function(of)
        summed = self._strategy.reduce("SUM", values, axis=None)
        return lambda: [float(each) for each in summed.numpy()]


class Departure:
    """Counts batches and knows when all workers are to leave."""

    def __init__(self, tf: Any, model: Any) -> None:
        alone = world().size == 1
        talk = Alone() if alone else Workers(tf, model.distribute_strategy)
        self._deadline = shared()
        self._deadline.watch()
        self.step = _iterations(model)
        self._looks = Looks(talk, self.step)
        if talk.rank == 0:
            self._deadline.notes.note(first_step=self.step, step=self.step)

    def after_batch(self) -> bool:
        """A batch is done; whether to save and leave now. The same on every worker."""
        self.step += 1
        return self.step >= self._looks.next and self._agreed()

    def after_epoch(self, seconds: float) -> bool:
        """An epoch is done and saved in so many seconds; whether to leave now."""
        self._saved(seconds)
        return self._agreed()

    def leave(self, seconds: float | None = None) -> None:
        """End this worker; ``seconds`` is what the save took, None when none was needed."""
        deadline = self._deadline
        deadline.agreed()
        if seconds is not None:
            self._saved(seconds)
        sentence = f"{deadline.told(self.step)}; the next attempt goes on from there"
        if self._looks.talk.rank == 0:
            print(f"allranks: {sentence}", flush=True)
        raise deadline.interruption(self.step, sentence)

    def end(self) -> None:
        """``fit`` is over: TERM ends the process again."""
        self._deadline.signals.release()

    def _agreed(self) -> bool:
        talk, looks = self._looks.talk, self._looks
        wished = float(self._deadline.wanted(talk, looks.gap))
        if talk.rank == 0:
            self._deadline.notes.stepped(self.step)
        return bool(looks.look(self.step, [wished], now=True)[0])

    def _saved(self, seconds: float) -> None:
        deadline = self._deadline
        deadline.save_seconds = max(deadline.save_seconds, seconds)
        self._looks.restart(self.step)
        if self._looks.talk.rank == 0:
            deadline.notes.saved(self.step, deadline.save_seconds)


def _iterations(model: Any) -> int:
    """Steps that the optimizer has made, also before this process."""
    made = getattr(model.optimizer, "iterations", None)
    return 0 if made is None else int(made.numpy())
