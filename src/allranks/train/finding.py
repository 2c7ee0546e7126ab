"""Which checkpoint a ``fit`` goes on from: found by rank 0, verified by all ranks together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allranks.errors import AllranksError, UsageError
from allranks.runtime.world.communicator import get_communicator
from allranks.train.checkpoint.checkpoint_reader import CheckpointReader
from allranks.train.checkpoint.manifest import read_saved
from allranks.train.checkpoint.store import CheckpointStore
from allranks.train.checkpoint.valid_checkpoints import (
    find_newest_valid,
    find_problems,
    resolve_resume_path,
)
from allranks.train.config import TrainConfig

if TYPE_CHECKING:
    from allranks.train.trainer import Trainer

FINISHED = "finished"


@dataclass(frozen=True)
class Found:
    """A checkpoint that is sound, open on this rank."""

    reader: CheckpointReader
    state: dict[str, Any]
    own: bool
    """Whether it is of this very run and fit, and not of another that was named."""

    def is_over(self, config: TrainConfig) -> bool:
        """Whether the training had come to its end and was not made longer since."""
        at_end = self.own and (self.reader.path.parent / FINISHED).exists()
        if not (self.reader.manifest.finished or at_end):
            return False
        now = (config.last_epoch, config.max_steps, config.max_seconds)
        return not any(map(_is_more, now, self.state["progress"]["limits"]))


def note_finished(folder: Path, finished: bool = True) -> None:
    """For trainings that save nothing at their end: the best is what a later start finds."""
    try:
        if finished:
            (folder / FINISHED).touch()
        else:
            (folder / FINISHED).unlink(missing_ok=True)
    except OSError:
        return  # a disk that takes no checkpoint was told of already


def _is_more(now: float | None, before: float | None) -> bool:
    return before is not None and (now is None or now > before)


def find(trainer: Trainer, store: CheckpointStore) -> Found | None:
    """What ``TrainConfig(resume=…)`` means: this fit's newest checkpoint, else the one that is named.

    Collective. A job that was started with the name of a checkpoint and is requeued goes on from its own.
    """
    resume, size = trainer.config.resume, trainer.world.size
    if resume is False:
        return None

    def look(check: Callable[[Path], Sequence[str]]) -> tuple[str, bool] | None:
        saved = find_newest_valid(store, check, lambda text: trainer.say(f"WARNING: {text}"))
        if saved is not None:
            return str(saved.path), True
        if resume in (True, "auto"):
            return None
        alike = Path(str(resume)) / store.folder.name  # a run folder: its fit of the same turn
        named = alike if CheckpointStore(alike).list_saved() else resume
        return str(resolve_resume_path(str(named), check, trainer.say)), False

    found = look(find_problems) if size == 1 else _together(look, trainer.world.rank, size)
    if found is None:
        return None
    return _opened(Path(found[0]), found[1], size)


def _opened(path: Path, own: bool, size: int) -> Found:
    """Every rank reads the manifest and the small state; an error of one is everyone's."""
    found, problem = None, ""
    try:
        reader = CheckpointReader(path)
        found = Found(reader, reader.blob("state"), own)
    except AllranksError as error:
        problem = str(error)
    for rank, told in enumerate(get_communicator(size).all_gather(problem)):
        if told:
            raise UsageError(told if size == 1 else f"Rank {rank}: {told}")
    assert found is not None
    return found


def _together(look: Callable[..., Any], rank: int, size: int) -> Any:
    """Rank 0 looks, and whenever it checks a checkpoint each rank reads its share of the files."""
    ranks = get_communicator(size)
    found, problem = None, ""
    if rank == 0:
        try:
            found = look(lambda path: _checked(path, rank, size))
        except AllranksError as error:
            problem = str(error)
        ranks.broadcast(None)
    else:
        path: str | None = None
        while (path := ranks.broadcast(path)) is not None:
            ranks.all_gather(_share(Path(path), rank, size))
    found, problem = ranks.broadcast((found, problem))
    if problem:
        raise UsageError(problem)
    return found


def _checked(path: Path, rank: int, size: int) -> list[str]:
    ranks = get_communicator(size)
    ranks.broadcast(str(path))
    told = ranks.all_gather(_share(path, rank, size))
    # A rank that does not see the folder (NFS remembers for a while what was not there) proves nothing.
    unseen = [other for other, found in enumerate(told) if found is None]
    found = [text for texts in told if texts is not None for text in texts]
    for other in unseen:
        found += _share(path, other, size) or []
    return found


def _share(path: Path, rank: int, size: int) -> list[str] | None:
    """What is wrong with this rank's share of the files; None when it cannot see them."""
    manifest = read_saved(path).manifest
    if manifest is None:
        return find_problems(path) if rank == 0 else None
    return find_problems(path, sorted(manifest.files)[rank::size])
