"""Which checkpoint to go on from: the newest that is sound. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from allranks.errors import UsageError
from allranks.train.checkpoint.manifest import NAME, BrokenCheckpoint, NewerCheckpoint
from allranks.train.checkpoint.patience import CannotRead, Unreadable
from allranks.train.checkpoint.saved import Saved, saved_at
from allranks.train.checkpoint.store import Store
from allranks.train.checkpoint.verify import problems

Check = Callable[[Path], Sequence[str]]
"""Gives what is wrong with a step folder: `verify.problems`, or the same shared out over ranks."""
Say = Callable[[str], None]


def newest_valid(store: Store, check: Check, say: Say) -> Saved | None:
    """The newest sound checkpoint of a training that owns its folder; None when there is none.

    Broken ones are moved to ``quarantine/`` with a note, so that they are met once. Where all are broken
    nothing is moved and it is an error: what days of training left must not be given up in silence.
    """
    broken: list[tuple[Saved, str]] = []
    for saved in store.all():
        if not (found := _problems(saved, check)):
            for each, reason in broken:
                said = f"Checkpoint {each.path.name} is broken: {reason}"
                say(f"{said} {_aside(store, each, reason)}")
            return saved
        broken.append((saved, " ".join(found)))
    if broken:
        raise _none_sound(store, broken)
    return None


def _problems(saved: Saved, check: Check) -> Sequence[str]:
    """What is wrong with it; an error when that cannot be told, or is no matter of this version."""
    if saved.newer:
        raise NewerCheckpoint(saved.problem)
    if saved.manifest is None and not saved.unreadable:
        return [saved.problem]
    found = [CannotRead(saved.problem)] if saved.unreadable else check(saved.path)
    for text in found:
        if isinstance(text, CannotRead):
            raise Unreadable(
                f"The checkpoint {saved.path} cannot be read now, and nothing was changed: {text}\n"
                "Start again when the file system answers. To go on from the checkpoint before it: "
                f"mv {saved.path} {saved.path.parent.parent}"
            )
    return found


def _none_sound(store: Store, broken: Sequence[tuple[Saved, str]]) -> UsageError:
    lines = "".join(f"\n  {saved.path.name}: {reason}" for saved, reason in broken[:6])
    what = f"none of the {len(broken)} is sound" if len(broken) > 1 else "the only one is broken"
    return UsageError(
        f"There are checkpoints in {store.folder}, and {what}:{lines}\n"
        "To begin anew, which moves them aside: TrainConfig(resume=False)."
    )


def _aside(store: Store, saved: Saved, reason: str) -> str:
    try:
        kept = store.quarantine(saved.path, reason)
    except OSError as error:
        return f"It is passed over; it could not be moved aside: {error.strerror}."
    return f"It was moved to {kept}; the one before it is used."


def resolve(resume: str, check: Check = problems, say: Say = print) -> Path:
    """The step folder that ``resume="PATH"`` means: itself, a link, a checkpoints or a run folder.

    Of several the newest sound one. Nothing is moved: the folder may be another run's.
    """
    path = Path(resume).expanduser()
    if path.is_file():
        raise _a_file(path)
    if not path.is_dir():
        raise UsageError(f"resume='{resume}': there is no such folder.{_nearby(path)}")
    if (path / NAME).exists() or path.resolve().name.startswith("step-"):
        return _one(path.resolve(), check)
    for folder in (path / "checkpoints", path):
        if found := Store(folder).all():
            return _first_sound(found, check, say)
    raise UsageError(
        f"resume='{resume}': there is no checkpoint.\n"
        "Name a run folder, its checkpoints folder, or one of the step folders in it."
    )


def _one(path: Path, check: Check) -> Path:
    if found := _problems(saved_at(path), check):
        raise BrokenCheckpoint(
            f"The checkpoint {path} is broken: {' '.join(found)}\n"
            f"Name another, or the folder above it for the newest sound one: {path.parent}"
        )
    return path


def _first_sound(candidates: Sequence[Saved], check: Check, say: Say) -> Path:
    for saved in candidates:
        if not (found := _problems(saved, check)):
            return saved.path
        say(f"Checkpoint {saved.path} is broken and passed over: {' '.join(found)}")
    raise BrokenCheckpoint(
        f"All {len(candidates)} checkpoints of {candidates[0].path.parent} are broken."
    )


def _nearby(path: Path) -> str:
    """What there is instead, when the folder above is one of checkpoints."""
    found = [saved.path.name for saved in Store(path.parent).all()]
    return f"\nThere are: {', '.join(found[:6])}{' …' if len(found) > 6 else ''}" if found else ""


def _a_file(path: Path) -> UsageError:
    """Files of weights are not resumed from: they know no optimizer, no step, no position in the data."""
    first = f"resume='{path}' is a file; a training is resumed from a folder, such as runs/NAME."
    if path.suffix == ".safetensors":
        return UsageError(
            f"{first}\nTo begin with the weights in it: "
            f'model.load_state_dict(safetensors.torch.load_file("{path}"))'
        )
    return UsageError(
        f"{first}\nTo begin with plain weights: "
        f'model.load_state_dict(torch.load("{path}", weights_only=True))\n'
        "If that is refused, the file is a pickle that runs code when it is loaded. Convert it once, "
        "where you trust it:\n"
        f'  python -c \'import torch; saved = torch.load("{path}", weights_only=False); '
        'torch.save(saved["state_dict"], "weights.pt")\''
    )
