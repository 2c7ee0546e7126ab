"""Verify checkpoints and find the newest valid one to resume from. Does not import torch."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from allranks.errors import UsageError
from allranks.train.checkpoint.checkpoint_folder import CheckpointStore
from allranks.train.checkpoint.durable_io import (
    ReadProblem,
    UnreadableCheckpoint,
    is_missing,
    read_with_retries,
)
from allranks.train.checkpoint.manifest import (
    NAME,
    BrokenCheckpoint,
    NewerCheckpoint,
    SavedCheckpoint,
    read_saved,
)

_BLOCK = 16 << 20


def find_problems(
    path: Path, names: Sequence[str] | None = None, *, sizes_only: bool = False
) -> list[str]:
    """Return the problems of a step folder as sentences; empty if it is valid.

    A sentence is a `ReadProblem` if the file system fails and the checkpoint itself may be valid.

    ``names`` are the files to verify, all by default: ranks divide those of a large checkpoint.
    """
    saved = read_saved(path)
    if saved.manifest is None:
        return [ReadProblem(saved.problem) if saved.unreadable else saved.problem]
    files = saved.manifest.files
    found = []
    for name in files if names is None else [name for name in names if name in files]:
        if problem := _problem(path / name, files[name], sizes_only):
            found.append(problem)
        if isinstance(problem, ReadProblem):
            break  # the other files would take as long to fail
    return found


def _problem(path: Path, wanted: Any, sizes_only: bool) -> str:
    try:
        size = read_with_retries(path.stat).st_size
        if size != wanted["bytes"]:
            return f"{path.name} has {size} bytes, not {wanted['bytes']}."
        if sizes_only or read_with_retries(lambda: checksum(path)) == wanted["crc32"]:
            return ""
    except OSError as error:
        if is_missing(error):
            return f"{path.name} is missing."
        return ReadProblem(f"{path.name} cannot be read: {error.strerror or error}.")
    return f"{path.name} was changed after it was written: its checksum differs."


def checksum(path: Path) -> str:
    """Return the CRC-32 of a file: it detects corruption at disk speed, but is not a signature."""
    total = 0
    with open(path, "rb", buffering=0) as file:
        block = bytearray(_BLOCK)
        view = memoryview(block)
        while count := file.readinto(block):
            total = zlib.crc32(view[:count], total)
    return f"{total:08x}"


Check = Callable[[Path], Sequence[str]]
"""Returns the problems of a step folder: `find_problems`, or the same divided over ranks."""
Say = Callable[[str], None]


def find_newest_valid(store: CheckpointStore, check: Check, say: Say) -> SavedCheckpoint | None:
    """Return the newest valid checkpoint in a training's own folder; None when there is none.

    Broken ones are moved to ``quarantine/`` with a note. If all are broken nothing is moved and it is an
    error: days of training must not be discarded silently.
    """
    broken: list[tuple[SavedCheckpoint, str]] = []
    for saved in store.list_saved():
        if not (found := _problems(saved, check)):
            for each, reason in broken:
                said = f"Checkpoint {each.path.name} is broken: {reason}"
                say(f"{said} {_quarantine(store, each, reason)}")
            return saved
        broken.append((saved, " ".join(found)))
    if broken:
        raise _none_valid(store, broken)
    return None


def _problems(saved: SavedCheckpoint, check: Check) -> Sequence[str]:
    """Return the problems of a checkpoint; raise if it cannot be read or needs a newer version."""
    if saved.newer:
        raise NewerCheckpoint(saved.problem)
    if saved.manifest is None and not saved.unreadable:
        return [saved.problem]
    found = [ReadProblem(saved.problem)] if saved.unreadable else check(saved.path)
    for text in found:
        if isinstance(text, ReadProblem):
            raise UnreadableCheckpoint(
                f"The checkpoint {saved.path} cannot be read now, and nothing was changed: {text}\n"
                "Start again when the file system responds, or resume from the checkpoint before it: "
                f"mv {saved.path} {saved.path.parent.parent}"
            )
    return found


def _none_valid(
    store: CheckpointStore, broken: Sequence[tuple[SavedCheckpoint, str]]
) -> UsageError:
    lines = "".join(f"\n  {saved.path.name}: {reason}" for saved, reason in broken[:6])
    what = f"none of the {len(broken)} is valid" if len(broken) > 1 else "the only one is broken"
    return UsageError(
        f"There are checkpoints in {store.folder}, but {what}:{lines}\n"
        "To start over and move them aside: TrainConfig(resume=False)."
    )


def _quarantine(store: CheckpointStore, saved: SavedCheckpoint, reason: str) -> str:
    try:
        kept = store.quarantine(saved.path, reason)
    except OSError as error:
        return f"It is skipped, but could not be moved aside: {error.strerror}."
    return f"It was moved to {kept}; the previous one is used."


def resolve_resume_path(resume: str, check: Check = find_problems, say: Say = print) -> Path:
    """Return the step folder for ``resume="PATH"``: itself, a link, a checkpoints or a run folder.

    Of several it is the newest valid one. Nothing is moved: the folder may be another run's.
    """
    path = Path(resume).expanduser()
    if path.is_file():
        raise _file_error(path)
    if not path.is_dir():
        raise UsageError(f"resume='{resume}': there is no such folder.{_nearby(path)}")
    if (path / NAME).exists() or path.resolve().name.startswith("step-"):
        return _check_one(path.resolve(), check)
    for folder in (path / "checkpoints", path):
        if found := CheckpointStore(folder).list_saved():
            return _first_valid(found, check, say)
    raise UsageError(
        f"resume='{resume}': there is no checkpoint.\n"
        "Give a run folder, its checkpoints folder, or one of the step folders in it."
    )


def _check_one(path: Path, check: Check) -> Path:
    if found := _problems(read_saved(path), check):
        raise BrokenCheckpoint(
            f"The checkpoint {path} is broken: {' '.join(found)}\n"
            f"Use another one, or the folder above it for the newest valid one: {path.parent}"
        )
    return path


def _first_valid(candidates: Sequence[SavedCheckpoint], check: Check, say: Say) -> Path:
    for saved in candidates:
        if not (found := _problems(saved, check)):
            return saved.path
        say(f"Checkpoint {saved.path} is broken and skipped: {' '.join(found)}")
    raise BrokenCheckpoint(
        f"All {len(candidates)} checkpoints of {candidates[0].path.parent} are broken."
    )


def _nearby(path: Path) -> str:
    """List the checkpoints of the folder above, if it has any."""
    found = [saved.path.name for saved in CheckpointStore(path.parent).list_saved()]
    return f"\nThere are: {', '.join(found[:6])}{' …' if len(found) > 6 else ''}" if found else ""


def _file_error(path: Path) -> UsageError:
    """Explain why a file of weights cannot be resumed: it has no optimizer, step or data position."""
    first = f"resume='{path}' is a file; training resumes from a folder, such as runs/NAME."
    if path.suffix == ".safetensors":
        return UsageError(
            f"{first}\nTo start from its weights: "
            f'model.load_state_dict(safetensors.torch.load_file("{path}"))'
        )
    return UsageError(
        f"{first}\nTo start from plain weights: "
        f'model.load_state_dict(torch.load("{path}", weights_only=True))\n'
        "If that fails, the file is a pickle that runs code when it is loaded. Convert it once, if you "
        "trust it:\n"
        f'  python -c \'import torch; saved = torch.load("{path}", weights_only=False); '
        'torch.save(saved["state_dict"], "weights.pt")\''
    )
