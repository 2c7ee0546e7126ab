"""Training that goes on where it was broken off, and a model saved once.

Reading some variables is a collective, so every worker must take part in writing: the chief writes
what is kept, the others to a folder that goes away.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from allranks.errors import UsageError, WorldError
from allranks.integrations.tensorflow.departure import Departure
from allranks.integrations.tensorflow.workers import tensorflow
from allranks.runtime.world import world

_NAME = "model.weights.h5"
_numbers = itertools.count(1)


def backup(
    folder: str | Path | None = None, *, keep: bool = False, leave: bool = True, keras: Any = None
) -> Any:
    """A Keras callback: the state of training at the end of each epoch, read again by ``fit``.

    A job that Slurm started again goes on after the last whole epoch. Before a job ends (its time limit,
    TERM, USR1 or USR2) all workers save at the same batch and leave, and the next attempt goes on with
    those weights at the beginning of that epoch; ``leave=False`` keeps out of it. ``folder`` lies on a disk that
    all nodes see; left out, it is ``backup`` in the run folder, ``backup-2`` for the script's second
    call, and so on: every ``fit`` needs a backup of its own. It is removed when ``fit`` ends, unless
    ``keep``. ``keras`` is the Keras that made the model: tf_keras where the
    script has imported it, else ``tf.keras``.
    """
    tf = tensorflow()
    place = Path(folder) if folder is not None else _next_folder()
    module = keras or sys.modules.get("tf_keras") or tf.keras
    version = str(getattr(module, "__version__", "2"))
    made = _new_callback if version.startswith("3.") else _old_callback
    return made(tf, module, place.absolute(), keep, leave)


def save(model: Any, path: str | Path, **options: Any) -> Path:
    """``model.save(path)`` by all workers, of which only the chief's stays. Call it on every worker."""
    target = Path(path)
    if world().is_main:
        target.parent.mkdir(parents=True, exist_ok=True)
        model.save(str(target), **options)
        return target
    with tempfile.TemporaryDirectory(prefix="allranks-") as folder:
        model.save(str(Path(folder) / target.name), **options)
    return target


def _next_folder() -> Path:
    """The calls of a script come in the same order when it starts again."""
    run, number = _run_folder(), next(_numbers)
    return run / ("backup" if number == 1 else f"backup-{number}")


def _run_folder() -> Path:
    folder = os.environ.get("ALLRANKS_RUN_DIR", "")
    if not folder:
        raise UsageError(
            "backup() without a folder writes to the run folder, but allranks did not start this "
            "process.\nGive it a folder of its own that stays the same when the job starts again: "
            "backup('backups/my-run')."
        )
    return Path(folder)


def _new_callback(tf: Any, keras: Any, folder: Path, keep: bool, leave: bool) -> Any:
    """For Keras 3, whose own BackupAndRestore lets all workers write to one file."""

    class Backup(keras.callbacks.Callback):  # type: ignore[misc]
        departure: Departure | None = None

        def on_train_begin(self, logs: Any = None) -> None:
            state = newest(folder)
            _same_on_all(tf, self.model, 0.0 if state is None else _order(state), folder)
            epoch = 0 if state is None else int(_order(state))
            self.model._initial_epoch = epoch or None
            self.epoch = epoch
            if state is not None:
                optimizer = self.model.optimizer
                if optimizer is not None and not optimizer.built:
                    optimizer.build(self.model.trainable_variables)
                self.model.load_weights(str(state / _NAME))
            self.departure = Departure(tf, self.model) if leave else None

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.model._initial_epoch = None  # fit has read it; its next call must not
            self.epoch = epoch

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if self.departure is not None and self.departure.after_batch():
                self.departure.leave(self._save(self.departure.step))

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.epoch = epoch + 1
            seconds = self._save()
            if self.departure is not None and self.departure.after_epoch(seconds):
                self.departure.leave()

        def on_train_end(self, logs: Any = None) -> None:
            self.model._initial_epoch = None  # where no epoch was left to begin
            if self.departure is not None:
                self.departure.end()
            if world().is_main and not keep:
                shutil.rmtree(folder, ignore_errors=True)

        def _save(self, step: int = 0) -> float:
            """After whole epochs, or in the middle of one after so many steps; the seconds it took."""
            began = time.monotonic()
            if not world().is_main:
                with tempfile.TemporaryDirectory(prefix="allranks-") as other:
                    self.model.save_weights(str(Path(other) / _NAME))
                return 0.0
            part = folder / "saving"
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            self.model.save_weights(str(part / _NAME))
            put_in_place(folder, part, self.epoch, step)
            return time.monotonic() - began

    return Backup()


def _old_callback(tf: Any, keras: Any, folder: Path, keep: bool, leave: bool) -> Any:
    """For Keras 2, whose own callback knows about workers; it must find the same on all of them."""

    class Backup(keras.callbacks.BackupAndRestore):  # type: ignore[misc]
        departure: Departure | None = None

        def on_train_begin(self, logs: Any = None) -> None:
            last = tf.train.latest_checkpoint(str(folder / "chief")) or "-0"
            _same_on_all(tf, self.model, int(last.rpartition("-")[2]), folder)
            super().on_train_begin(logs)
            self.departure = Departure(tf, self.model) if leave else None

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            super().on_train_batch_end(batch, logs)
            if self.departure is not None and self.departure.after_batch():
                began = time.monotonic()
                self._backup(epoch=self._current_epoch, batch=batch)
                self.departure.leave(time.monotonic() - began)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            began = time.monotonic()
            super().on_epoch_end(epoch, logs)
            if self.departure is not None and self.departure.after_epoch(time.monotonic() - began):
                self.departure.leave()

        def on_train_end(self, logs: Any = None) -> None:
            if self.departure is not None:
                self.departure.end()
            super().on_train_end(logs)

    return Backup(str(folder), **({"delete_checkpoint": False} if keep else {}))


_STATE = re.compile(r"^epoch-(\d+)(?:-step-(\d+))?$")


def newest(folder: Path) -> Path | None:
    """The newest state: of whole epochs, or of steps in the middle of the next one."""
    states = [each for each in folder.glob("epoch-*") if _STATE.match(each.name)]
    return max(states, key=_order, default=None)


def put_in_place(folder: Path, part: Path, epoch: int, step: int = 0) -> None:
    """Make a state that was written whole the newest; a kill leaves this one or the one before."""
    done = folder / (f"epoch-{epoch:06d}" + (f"-step-{step:09d}" if step else ""))
    shutil.rmtree(done, ignore_errors=True)
    part.rename(done)
    for each in folder.glob("epoch-*"):
        if each != done:
            shutil.rmtree(each)


def _order(state: Path) -> float:
    """Whole epochs, and a fraction for the steps after them."""
    found = _STATE.match(state.name)
    assert found is not None
    return int(found[1]) + int(found[2] or 0) / 1e10


def _same_on_all(tf: Any, model: Any, found: float, folder: Path) -> None:
    """Workers that start from different states would train together without an error."""
    here, strategy = world(), model.distribute_strategy
    if here.size == 1:
        return
    replicas = strategy.num_replicas_in_sync
    if replicas < here.size:
        raise UsageError(
            f"The model was not made in strategy.scope(): it trains alone in each of the {here.size} "
            "processes.\nMake and compile it in: with allranks.tensorflow.strategy().scope()."
        )
    per_replica = strategy.experimental_distribute_values_from_function(
        lambda _: tf.constant(float(found), dtype=tf.float64)
    )
    if abs(float(strategy.reduce("SUM", per_replica, axis=None)) - found * replicas) > 1e-11:
        raise WorldError(
            f"Worker {here.rank} on {here.host} finds state {found} in {folder}, others find another. "
            "It must be a folder that all nodes see: backup('/a/shared/disk/backup')."
        )
