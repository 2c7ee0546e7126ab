"""The same folder for ``torch.distributed.checkpoint``: its planner cuts tensors anew for other ranks.

Its own files carry a pickle; here its metadata is made from the manifest, so nothing is executed.
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
    """Gives ``dcp.load(state, storage_reader=DcpReader(path))`` the tensors of a step folder."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._reader = CheckpointReader(Path(path))

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Turn to another folder."""
        if checkpoint_id is not None:
            self._reader = CheckpointReader(Path(checkpoint_id))

    def read_metadata(self, *_: Any, **__: Any) -> Any:
        """Shapes and chunks of every tensor."""
        described = {key: self._described(key) for key in self._reader.manifest.tensors}
        return Metadata(state_dict_metadata=described)

    def _described(self, key: str) -> Any:
        entry = self._reader.entry(key)
        chunks = [
            ChunkStorageMetadata(torch.Size(chunk["offsets"]), torch.Size(chunk["shape"]))
            for chunk in entry["chunks"]
        ]
        properties = TensorProperties(dtype=self._reader.dtype(key))
        return TensorStorageMetadata(properties, torch.Size(entry["shape"]), chunks)

    def set_up_storage_reader(self, *_: Any, **__: Any) -> None:
        """Nothing to set up."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """As planned."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """As planned."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Any:
        """Copy each box that the planner asks for to where it wants it."""
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
        """Whether it is a step folder."""
        return (Path(checkpoint_id) / "manifest.json").exists()


def load(state: dict[str, Any], path: Path) -> None:
    """Fill the tensors of ``state`` in place, DTensors too. Each rank by itself: nobody is asked."""
    reader = DcpReader(path)
    if "no_dist" in inspect.signature(dcp.load).parameters:
        with warnings.catch_warnings():  # that it loads alone is what is meant
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            dcp.load(state, storage_reader=reader, no_dist=True)
    else:  # torch 2.4 to 2.6
        from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

        _load_state_dict(state, reader, no_dist=True)
