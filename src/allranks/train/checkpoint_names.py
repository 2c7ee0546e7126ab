"""What checkpoints are called: the folder of a step, and links that users name."""

from __future__ import annotations

import re
from pathlib import Path

from allranks.errors import UsageError
from allranks.train.checkpoint.manifest import parse_step_folder
from allranks.train.checkpoint.store import EARLIER, LATEST, QUARANTINE, CheckpointStore
from allranks.train.finding import FINISHED

_NAME = re.compile(r"^[A-Za-z0-9_][\w.+=-]*\Z")


def check_name(name: str | None) -> None:
    """An error for what cannot be a link beside the steps."""
    if name is None:
        return
    taken = (
        name in (LATEST, QUARANTINE, EARLIER, FINISHED, "owner.json")
        or parse_step_folder(name)[0] >= 0
    )
    if taken or not _NAME.match(name):
        why = "that name is taken" if taken else "letters, digits, '-', '_' and '.' make a name"
        raise UsageError(f"save_checkpoint({name!r}): {why}. For example save_checkpoint('mine').")


def next_place(store: CheckpointStore, step: int) -> Path:
    """Where the next save of this step will lie: another one of the same step is not written over."""
    there = [parse_step_folder(path.name) for path in store.folder.glob("step-*")]
    copy = max((copy for at, copy in there if at == step), default=0) + 1
    return store.folder / (f"step-{step:08d}" + (f"-{copy}" if copy > 1 else ""))


def links_of(store: CheckpointStore, step: int) -> set[str]:
    """The names of what was saved of this step."""
    return {
        link
        for link, to in store.links().items()
        if link != LATEST and parse_step_folder(to)[0] == step
    }


def any_there(store: CheckpointStore) -> bool:
    """Whether anything was ever published here and is still there."""
    return any(parse_step_folder(path.name)[0] >= 0 for path in store.folder.glob("step-*"))
