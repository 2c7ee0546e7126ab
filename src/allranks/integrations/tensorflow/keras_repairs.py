"""Two functions of Keras 3 that make ``fit`` fail under MultiWorkerMirroredStrategy, replaced.

Known and open in Keras (keras-team/keras#20585), seen up to 3.15.1:

* ``_maybe_symbolic_build`` averages the first batch over the replicas to learn its shape, which
  fails on a tuple of tensors. One replica's part of the batch has the shape as well.
* ``reduce_per_replica`` averages scalars over their axis 0, which they do not have.

A function is replaced only while its source still has the line that fails: a Keras that was fixed or
rewritten is left alone.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from typing import Any

_TRAINER = "keras.src.backend.tensorflow.trainer"
_FAILS_TO_BUILD = "self.distribute_strategy.reduce("
_FAILS_TO_REDUCE = 'strategy.reduce("MEAN", v, axis=0)'


def repair_keras(tf: Any, *, report: bool) -> list[str]:
    """Replace the broken functions of ``tf.keras``; return their names."""
    version = _keras_version(tf)
    if not version.startswith("3."):
        return []
    trainer = importlib.import_module(_TRAINER)
    done = [each.__name__ for each in (_build, _reduce) if each(trainer)]
    if done and report:
        print(
            f"allranks: Keras {version} cannot fit() on several workers; replaced its "
            "_maybe_symbolic_build and reduce_per_replica (repair_keras=False leaves them).",
            file=sys.stderr,
        )
    return done


def _keras_version(tf: Any) -> str:
    """Return the version of ``tf.keras``; nothing when the script uses tf_keras, or has no Keras."""
    if "tf_keras" in sys.modules:
        return ""
    try:
        return str(tf.keras.__version__)
    except (ImportError, AttributeError):
        return ""


def _build(trainer: Any) -> bool:
    kind = trainer.TensorFlowTrainer
    if not _has_source_line(getattr(kind, "_maybe_symbolic_build", None), _FAILS_TO_BUILD):
        return False
    original = kind._maybe_symbolic_build

    def _maybe_symbolic_build(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
        """Build with one replica's part of the first batch in place of the mean over all."""
        if self._distribute_strategy is None or iterator is None:
            original(self, iterator=iterator, data_batch=data_batch)
            return
        first = next(batches for _, _, batches in iterator)
        local = self.distribute_strategy.experimental_local_results
        part = trainer.tree.map_structure(lambda value: local(value)[0], next(first))
        original(self, data_batch=part)

    kind._maybe_symbolic_build = _maybe_symbolic_build
    return True


def _reduce(trainer: Any) -> bool:
    original = trainer.reduce_per_replica
    if not _has_source_line(original, _FAILS_TO_REDUCE):
        return False

    def reduce_per_replica(values: Any, strategy: Any, reduction: str) -> Any:
        """Return the mean over all replicas of all workers; other reductions as before."""
        if reduction in ("auto", "mean") and trainer._collective_all_reduce_multi_worker(strategy):
            return trainer.tree.map_structure(
                lambda value: strategy.reduce("MEAN", value, axis=None), values
            )
        return original(values, strategy, reduction)

    trainer.reduce_per_replica = reduce_per_replica
    return True


def _has_source_line(function: Any, text: str) -> bool:
    try:
        return function is not None and text in inspect.getsource(function)
    except (OSError, TypeError):
        return False
