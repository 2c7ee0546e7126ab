"""Save and load checkpoints: step folders of safetensors files with a manifest, published atomically.

``manifest``, ``store``, ``valid_checkpoints`` and ``checkpoint_list`` do not import torch, so that a login
node can list and verify checkpoints. Nothing here communicates between ranks: the caller agrees with the
other ranks where that is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from allranks.core.lazy_attributes import names_from

if TYPE_CHECKING:
    from allranks.train.checkpoint.checkpoint_reader import CheckpointReader as CheckpointReader
    from allranks.train.checkpoint.dcp import DcpReader as DcpReader
    from allranks.train.checkpoint.manifest import Manifest as Manifest

__getattr__ = names_from(
    __name__,
    {"CheckpointReader": "checkpoint_reader", "DcpReader": "dcp", "Manifest": "manifest"},
)
__all__ = ["CheckpointReader", "DcpReader", "Manifest"]
