"""Checkpoints of a training: one file each, written whole or not at all, read without running code.

runs/<name>/checkpoints/
  last.pt        after the last step
  best.pt        the best by the monitored metric
  epoch-3.pt, step-500.pt   periodic ones, the latest few
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import torch

from allranks.errors import UsageError

FORMAT = 1
_PERIODIC = re.compile(r"^(epoch|step)-(\d+)$")


class Checkpoints:
    """The checkpoints of one run folder; rank 0 alone writes."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder / "checkpoints"
        self._keep = keep

    def write(self, name: str, state: dict[str, Any]) -> Path:
        """Publish by one rename after the data is on the disk, then drop old periodic ones."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{name}.pt"
        part = self.folder / f".{name}.pt.part"
        try:
            with open(part, "wb") as file:
                torch.save({"format": FORMAT, **state}, file)
                file.flush()
                os.fsync(file.fileno())
            part.rename(path)
        finally:
            part.unlink(missing_ok=True)
        self._prune()
        return path

    def _prune(self) -> None:
        periodic = [path for path in self.folder.glob("*.pt") if _PERIODIC.match(path.stem)]
        periodic.sort(key=lambda path: path.stat().st_mtime_ns)
        for path in periodic[: -self._keep]:
            path.unlink()


def newest(folder: Path) -> Path | None:
    """The checkpoint of a folder that was written last; None when there is none."""
    paths = [path for path in folder.glob("*.pt") if path.stem != "best"] or list(
        folder.glob("*.pt")
    )
    return max(paths, key=lambda path: path.stat().st_mtime_ns, default=None)


def find(resume: str | bool, folder: Path) -> Path | None:
    """What ``TrainConfig(resume=…)`` means: a file, a run folder, or this run's latest."""
    if resume is False:
        return None
    if resume is True:
        return newest(folder / "checkpoints")
    path = Path(resume)
    if path.is_file():
        return path
    for place in (path / "checkpoints", path):
        if place.is_dir() and (found := newest(place)):
            return found
    raise UsageError(
        f"resume='{resume}': there is no checkpoint.\n"
        "Give a file such as runs/NAME/checkpoints/last.pt, or a run folder that has checkpoints."
    )


def read(path: Path) -> dict[str, Any]:
    """A checkpoint's content, on the CPU; only tensors and plain containers are accepted."""
    import pickle

    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise UsageError(
            f"{path} cannot be read as a checkpoint: {str(error).splitlines()[0]}"
        ) from None
    if not isinstance(state, dict) or state.get("format") != FORMAT or "model" not in state:
        raise UsageError(
            f"{path} is not a checkpoint of the Trainer.\n"
            "Plain weights are loaded with model.load_state_dict(torch.load(path))."
        )
    return state
