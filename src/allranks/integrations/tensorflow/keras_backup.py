"""A Keras callback that saves and resumes training, and a model saved once.

Reading some variables is a collective, so every worker must take part in writing: the chief writes
the files that stay, the others write to a temporary folder.
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
from allranks.integrations.tensorflow.graceful_exit import GracefulExit
from allranks.integrations.tensorflow.worker_strategy import import_tensorflow
from allranks.runtime.world import world
from allranks.runtime.world.communicator import TensorFlowCommunicator

_NAME = "model.weights.h5"
_calls = itertools.count(1)


def backup(
    folder: str | Path | None = None,
    *,
    keep: bool = False,
    graceful_exit: bool = True,
    keras: Any = None,
) -> Any:
    """Return a Keras callback that saves training after each epoch and resumes it in ``fit``.

    A job that Slurm started again resumes after the last whole epoch. Before a job ends (its time limit,
    TERM, USR1 or USR2) all workers save at the same batch and exit, and the next attempt resumes with
    those weights at the beginning of that epoch; ``graceful_exit=False`` saves whole epochs only.
    ``folder`` lies on a disk that all nodes see; by default it is ``backup`` in the run folder,
    ``backup-2`` for the script's second call, and so on: every ``fit`` needs a backup of its own. It is
    removed when ``fit`` ends, unless ``keep``. ``keras`` is the Keras that made the model: tf_keras where
    the script has imported it, else ``tf.keras``.
    """
    tf = import_tensorflow()
    place = Path(folder) if folder is not None else _next_folder()
    module = keras or sys.modules.get("tf_keras") or tf.keras
    version = str(getattr(module, "__version__", "2"))
    make = _keras3_callback if version.startswith("3.") else _keras2_callback
    return make(tf, module, place.absolute(), keep, graceful_exit)


def save(model: Any, path: str | Path, **options: Any) -> Path:
    """Save the model once: all workers call ``model.save``, and the chief's file stays."""
    target = Path(path)
    if world().is_main:
        target.parent.mkdir(parents=True, exist_ok=True)
        model.save(str(target), **options)
        return target
    with tempfile.TemporaryDirectory(prefix="allranks-") as folder:
        model.save(str(Path(folder) / target.name), **options)
    return target


def _next_folder() -> Path:
    """Return the next default folder: a script makes its calls in the same order when it starts again."""
    run, number = _run_folder(), next(_calls)
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


def _keras3_callback(tf: Any, keras: Any, folder: Path, keep: bool, graceful: bool) -> Any:
    """Return the callback for Keras 3, whose BackupAndRestore lets all workers write to one file."""

    class Keras3Backup(keras.callbacks.Callback):  # type: ignore[misc]
        graceful_exit: GracefulExit | None = None

        def on_train_begin(self, logs: Any = None) -> None:
            state = newest_state(folder)
            _check_same_state(tf, self.model, 0.0 if state is None else _order(state), folder)
            epoch = 0 if state is None else int(_order(state))
            self.model._initial_epoch = epoch or None
            self.epoch = epoch
            if state is not None:
                optimizer = self.model.optimizer
                if optimizer is not None and not optimizer.built:
                    optimizer.build(self.model.trainable_variables)
                self.model.load_weights(str(state / _NAME))
            self.graceful_exit = GracefulExit(tf, self.model) if graceful else None

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.model._initial_epoch = None  # fit has read it; its next call must not
            self.epoch = epoch

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if self.graceful_exit is not None and self.graceful_exit.after_batch():
                self.graceful_exit.exit(self._save(self.graceful_exit.step))

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.epoch = epoch + 1
            seconds = self._save()
            if self.graceful_exit is not None and self.graceful_exit.after_epoch(seconds):
                self.graceful_exit.exit()

        def on_train_end(self, logs: Any = None) -> None:
            self.model._initial_epoch = None  # where no epoch was left to begin
            if self.graceful_exit is not None:
                self.graceful_exit.end()
            if world().is_main and not keep:
                shutil.rmtree(folder, ignore_errors=True)

        def _save(self, step: int = 0) -> float:
            """Save after a whole epoch, or in the middle of one at ``step``; return the seconds it took."""
            began = time.monotonic()
            if not world().is_main:
                with tempfile.TemporaryDirectory(prefix="allranks-") as other:
                    self.model.save_weights(str(Path(other) / _NAME))
                return 0.0
            part = folder / "saving"
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            self.model.save_weights(str(part / _NAME))
            publish_state(folder, part, self.epoch, step)
            return time.monotonic() - began

    return Keras3Backup()


def _keras2_callback(tf: Any, keras: Any, folder: Path, keep: bool, graceful: bool) -> Any:
    """Return the callback for Keras 2, whose own one handles workers but does not compare their states."""

    class Keras2Backup(keras.callbacks.BackupAndRestore):  # type: ignore[misc]
        graceful_exit: GracefulExit | None = None

        def on_train_begin(self, logs: Any = None) -> None:
            last = tf.train.latest_checkpoint(str(folder / "chief")) or "-0"
            _check_same_state(tf, self.model, int(last.rpartition("-")[2]), folder)
            super().on_train_begin(logs)
            self.graceful_exit = GracefulExit(tf, self.model) if graceful else None

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            super().on_train_batch_end(batch, logs)
            if self.graceful_exit is not None and self.graceful_exit.after_batch():
                began = time.monotonic()
                self._backup(epoch=self._current_epoch, batch=batch)
                self.graceful_exit.exit(time.monotonic() - began)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            began = time.monotonic()
            super().on_epoch_end(epoch, logs)
            if self.graceful_exit is not None and self.graceful_exit.after_epoch(
                time.monotonic() - began
            ):
                self.graceful_exit.exit()

        def on_train_end(self, logs: Any = None) -> None:
            if self.graceful_exit is not None:
                self.graceful_exit.end()
            super().on_train_end(logs)

    return Keras2Backup(str(folder), **({"delete_checkpoint": False} if keep else {}))


_STATE = re.compile(r"^epoch-(\d+)(?:-step-(\d+))?$")


def newest_state(folder: Path) -> Path | None:
    """Return the newest state: of whole epochs, or of steps in the middle of the next one."""
    states = [each for each in folder.glob("epoch-*") if _STATE.match(each.name)]
    return max(states, key=_order, default=None)


def publish_state(folder: Path, part: Path, epoch: int, step: int = 0) -> None:
    """Rename a complete state to its final name; a kill leaves this one or the previous one."""
    done = folder / (f"epoch-{epoch:06d}" + (f"-step-{step:09d}" if step else ""))
    shutil.rmtree(done, ignore_errors=True)
    part.rename(done)
    for each in folder.glob("epoch-*"):
        if each != done:
            shutil.rmtree(each)


def _order(state: Path) -> float:
    """Return the whole epochs, and a fraction for the steps after them."""
    found = _STATE.match(state.name)
    assert found is not None
    return int(found[1]) + int(found[2] or 0) / 1e10


def _check_same_state(tf: Any, model: Any, found: float, folder: Path) -> None:
    """Refuse workers that find different states: they would train together without an error."""
    here, strategy = world(), model.distribute_strategy
    if here.size == 1:
        return
    if strategy.num_replicas_in_sync < here.size:
        raise UsageError(
            f"The model was not made in strategy.scope(): each of the {here.size} processes would train "
            "its own.\nMake and compile it in: with allranks.tensorflow.strategy().scope()."
        )
    states = TensorFlowCommunicator(tf, strategy, here).all_gather(found)
    if len(set(states)) > 1:
        raise WorldError(
            f"Worker {here.rank} on {here.host} finds state {found} in {folder}, other workers find "
            f"{', '.join(str(each) for each in sorted(set(states) - {found}))}.\n"
            "The folder must be on a disk that all nodes see: backup('/a/shared/disk/backup')."
        )
