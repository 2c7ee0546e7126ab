"""Helpers of the checkpoint tests: savers for several ranks in one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from allranks.train.checkpoint.async_writer import CheckpointSaver
from allranks.train.checkpoint.checkpoint_folder import CheckpointStore
from allranks.train.checkpoint.write_plan import CheckpointState


def new_store(folder: Path) -> tuple[CheckpointStore, str]:
    store = CheckpointStore(folder / "checkpoints")
    return store, store.take_over({"attempt": 1})


def save(
    store: CheckpointStore,
    token: str,
    step: int,
    snapshots: Sequence[CheckpointState],
    links: Sequence[str] = (),
    about: Mapping[str, Any] | None = None,
    **keeping: Any,
) -> list[str]:
    """One save of all ranks; what each says of it."""
    part = store.stage(step, token)
    savers = [CheckpointSaver(store, rank, len(snapshots), token) for rank in range(len(snapshots))]
    for saver, snapshot in zip(savers, snapshots, strict=True):
        saver.start(snapshot, part, {"step": step, **(about or {})}, links=links, **keeping)
    for saver in reversed(savers):
        if saver.problem:
            savers[0].cancel()
        saver.wait(60)
        assert not saver.busy
    return [saver.problem for saver in savers]


def save_steps(store: CheckpointStore, token: str, *steps: int, **keeping: Any) -> None:
    """Small checkpoints whose weights are the step."""
    for step in steps:
        assert save(store, token, step, [small(step)], **keeping) == [""]


def small(step: int) -> CheckpointState:
    weights = {"model.weight": torch.full((4, 3), float(step)), "model.bias": torch.ones(3)}
    return CheckpointState(weights, state={"step": step}, own={"random": torch.ones(2)})


def names(store: CheckpointStore) -> list[str]:
    return [saved.path.name for saved in store.list_saved()]


def flip(path: Path, at: int, bit: int = 0) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(bytes(data))
