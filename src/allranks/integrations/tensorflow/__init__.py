"""TensorFlow's multi-worker training from whatever started this process.

    strategy = allranks.tensorflow.strategy()      before any tensor, model or dataset
    with strategy.scope():
        model = ...
    model.fit(data, callbacks=[allranks.tensorflow.backup()])
    allranks.tensorflow.save(model, "model.keras")

Neither TensorFlow nor torch is loaded by importing this; TensorFlow is when a name is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from allranks.core.lazy_attributes import names_from

if TYPE_CHECKING:
    from allranks.integrations.tensorflow.keras_backup import backup as backup
    from allranks.integrations.tensorflow.keras_backup import save as save
    from allranks.integrations.tensorflow.worker_strategy import strategy as strategy

_HOMES = {"backup": "keras_backup", "save": "keras_backup", "strategy": "worker_strategy"}

__all__ = [*_HOMES]
__getattr__ = names_from(__name__, _HOMES)
