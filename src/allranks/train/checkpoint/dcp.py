"""Read a step folder through ``torch.distributed.checkpoint``, whose planner re-shards the tensors.

The metadata is built from the manifest: unlike the ``.metadata`` pickle of DCP it executes nothing.
"""

from __future__ import annotations

import inspect
import os
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from allranks.train.checkpoint.checkpoint_reader import CheckpointReader


class DcpReader(StorageReader):
    """Reads a step folder: ``dcp.load(state, storage_reader=DcpReader(path))``."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._reader = CheckpointReader(Path(path))

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Switch to another folder."""
        if checkpoint_id is not None:
            self._reader = CheckpointReader(Path(checkpoint_id))

    def read_metadata(self, *_: Any, **__: Any) -> Any:
        """Return the shapes and chunks of every tensor."""
        described = {key: self._describe(key) for key in self._reader.manifest.tensors}
        return Metadata(state_dict_metadata=described)

    def _describe(self, key: str) -> Any:
        entry = self._reader.entry(key)
        chunks = [
            ChunkStorageMetadata(torch.Size(chunk["offsets"]), torch.Size(chunk["shape"]))
            for chunk in entry["chunks"]
        ]
        properties = TensorProperties(dtype=self._reader.dtype(key))
        return TensorStorageMetadata(properties, torch.Size(entry["shape"]), chunks)

    def set_up_storage_reader(self, *_: Any, **__: Any) -> None:
        """Do nothing: there is nothing to set up."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan unchanged."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans unchanged."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Any:
        """Copy each box that the plan asks for to its target."""
        for item in plan.items:
            begin = item.storage_index.offset or [0] * len(item.storage_offsets)
            offsets = [a + b for a, b in zip(begin, item.storage_offsets, strict=True)]
            values = self._reader.part(item.storage_index.fqn, offsets, item.lengths)
            target = planner.resolve_tensor(item).detach()
            target.copy_(values)
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return whether it is a step folder."""
        return (Path(checkpoint_id) / "manifest.json").exists()


def load(state: dict[str, Any], path: Path) -> None:
    """Fill the tensors of ``state`` in place, also DTensors. Not collective."""
    reader = DcpReader(path)
    if "no_dist" in inspect.signature(dcp.load).parameters:
        with warnings.catch_warnings():  # loading without a process group is intended
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            dcp.load(state, storage_reader=reader, no_dist=True)
    else:  # torch 2.4 to 2.6
        from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

        _load_state_dict(state, reader, no_dist=True)
