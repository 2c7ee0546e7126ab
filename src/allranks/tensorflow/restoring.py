"""Training that goes on where it was broken off, and a model saved once.

Reading some variables is a collective, so every worker must take part in writing: the chief writes
what is kept, the others to a folder that goes away.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from allranks.distributed import world
from allranks.errors import UsageError, WorldError
from allranks.tensorflow.workers import tensorflow

_NAME = "model.weights.h5"
_numbers = itertools.count(1)


def backup(folder: str | Path | None = None, *, keep: bool = False, keras: Any = None) -> Any:
    """A Keras callback: the state of training at the end of each epoch, read again by ``fit``.

    A job that Slurm started again goes on after the last whole epoch. ``folder`` lies on a disk that
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
    return made(tf, module, place.absolute(), keep)


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


def _new_callback(tf: Any, keras: Any, folder: Path, keep: bool) -> Any:
    """For Keras 3, whose own BackupAndRestore lets all workers write to one file."""

    class Backup(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_begin(self, logs: Any = None) -> None:
            epoch = newest(folder)
            _same_on_all(tf, self.model, epoch, folder)
            self.model._initial_epoch = epoch or None
            if epoch == 0:
                return
            optimizer = self.model.optimizer
            if optimizer is not None and not optimizer.built:
                optimizer.build(self.model.trainable_variables)
            self.model.load_weights(str(_of_epoch(folder, epoch) / _NAME))

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.model._initial_epoch = None  # fit has read it; its next call must not

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if not world().is_main:
                with tempfile.TemporaryDirectory(prefix="allranks-") as other:
                    self.model.save_weights(str(Path(other) / _NAME))
                return
            part = folder / "saving"
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            self.model.save_weights(str(part / _NAME))
            put_in_place(folder, part, epoch + 1)

        def on_train_end(self, logs: Any = None) -> None:
            self.model._initial_epoch = None  # where no epoch was left to begin
            if world().is_main and not keep:
                shutil.rmtree(folder, ignore_errors=True)

    return Backup()


def _old_callback(tf: Any, keras: Any, folder: Path, keep: bool) -> Any:
    """For Keras 2, whose own callback knows about workers; it must find the same on all of them."""

    class Backup(keras.callbacks.BackupAndRestore):  # type: ignore[misc]
        def on_train_begin(self, logs: Any = None) -> None:
            last = tf.train.latest_checkpoint(str(folder / "chief")) or "-0"
            _same_on_all(tf, self.model, int(last.rpartition("-")[2]), folder)
            super().on_train_begin(logs)

    return Backup(str(folder), **({"delete_checkpoint": False} if keep else {}))


def newest(folder: Path) -> int:
    """Epochs done according to the newest state; 0 without one."""
    return max((int(each.name[6:]) for each in folder.glob("epoch-*")), default=0)


def put_in_place(folder: Path, part: Path, epoch: int) -> None:
    """Make a state that was written whole the newest; a kill leaves this one or the one before."""
    done = _of_epoch(folder, epoch)
    shutil.rmtree(done, ignore_errors=True)
    part.rename(done)
    for each in folder.glob("epoch-*"):
        if each != done:
            shutil.rmtree(each)


def _of_epoch(folder: Path, epoch: int) -> Path:
    return folder / f"epoch-{epoch:06d}"


def _same_on_all(tf: Any, model: Any, found: int, folder: Path) -> None:
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
        lambda _: tf.constant(float(found))
    )
    if float(strategy.reduce("SUM", per_replica, axis=None)) != found * replicas:
        raise WorldError(
            f"Worker {here.rank} on {here.host} finds state {found} in {folder}, others find another. "
            "It must be a folder that all nodes see: backup('/a/shared/disk/backup')."
        )
