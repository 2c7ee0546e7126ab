"""Where a ``fit`` starts: from scratch, or from a checkpoint found by rank 0 and verified by all ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from allranks.errors import AllranksError, UsageError
from allranks.runs.atomic_files import read_json
from allranks.runtime.world.communicator import Communicator
from allranks.train.checkpoint.checkpoint_folder import CheckpointStore
from allranks.train.checkpoint.checkpoint_reader import CheckpointReader
from allranks.train.checkpoint.manifest import read_saved
from allranks.train.checkpoint.valid_checkpoints import (
    find_newest_valid,
    find_problems,
    resolve_resume_path,
)
from allranks.train.config import TrainConfig
from allranks.train.context import TrainContext
from allranks.train.loggers.line_file import count_logged_lines
from allranks.train.loop.checkpoint_policy import CheckpointManager
from allranks.train.loop.collective_save import FINISHED, note_finished
from allranks.train.loop.fit_setup import rebuild_loaders
from allranks.train.loop.save_restore import check_fits, restore


@dataclass(frozen=True)
class ResumedFrom:
    """A checkpoint from which the training was resumed; its files are closed again."""

    path: Path
    own: bool
    """Whether it is of this very run and fit, and not of another one that was named."""
    is_over: bool
    """Whether the training had finished."""
    logged: Mapping[str, int]
    save_seconds: float


@dataclass(frozen=True)
class StartPoint:
    """How a fit starts."""

    checkpoint: ResumedFrom | None
    """None when it starts from scratch."""
    continues_logs: bool
    """Whether what the loggers wrote before belongs to this training."""
    logged: Mapping[str, int] | None
    """How much of that; None leaves it as it is."""


def start_or_resume(
    context: TrainContext,
    checkpoints: CheckpointManager,
    store: CheckpointStore,
    train: Any,
    val: Any,
) -> StartPoint:
    """Take over the checkpoint folder, and resume if there is a checkpoint to resume from; collective."""
    config, world = context.config, context.world
    earlier = EarlierAttempt.find(store) if world.is_main else EarlierAttempt()
    if config.checkpoint:
        checkpoints.take_over({"logged": earlier.logged})
        if config.resume is False:
            context.communicator.call_on_rank_zero(lambda: _set_aside(context, store))
    resumed = _resume(context, store, train, val)
    is_over = resumed is not None and resumed.is_over
    if world.is_main and config.checkpoint and not is_over:
        note_finished(store.folder, False)
    if world.is_main:
        checkpoints.recall_duration(0.0 if resumed is None else resumed.save_seconds)
    logged = earlier.logged if earlier.exists else None
    if resumed is not None and resumed.own:
        logged = resumed.logged
    return StartPoint(resumed, resumed is not None or earlier.exists, logged)


def _set_aside(context: TrainContext, store: CheckpointStore) -> None:
    """Move an earlier start's checkpoints out of the way; nothing is deleted."""
    try:
        aside = store.set_aside()
    except OSError as error:
        raise UsageError(
            f"resume=False: the checkpoints in {store.folder} cannot be moved aside: {error.strerror}.\n"
            "Move them yourself, or give another run folder."
        ) from None
    if aside is not None:
        context.say(f"resume=False: the checkpoints of an earlier start were moved to {aside}.")


def _resume(
    context: TrainContext, store: CheckpointStore, train: Any, val: Any
) -> ResumedFrom | None:
    """Restore the training from the checkpoint to resume from, if there is one; collective."""
    found = find_checkpoint(context, store)
    if found is None:
        return None
    check_fits(context, found.reader, found.state)
    _keep_seed(context, found.state["progress"]["seed"], train, val)
    restore(context, found.reader, found.state)
    over = context.communicator.broadcast(found.is_over(context.config))
    manifest, logged = found.reader.manifest, found.state["progress"]["logged"]
    return ResumedFrom(found.reader.path, found.own, over, logged, manifest.seconds)


def _keep_seed(context: TrainContext, seed: int, train: Any, val: Any) -> None:
    """Continue the data in the order that the training began with, whatever the seed is now."""
    engine = context.engine
    if seed == engine.session.seed:
        return
    if context.config.seed is not None:
        context.say(f"seed={context.config.seed}: the training began with {seed}, which is kept.")
    engine.session = replace(engine.session, seed=seed)
    rebuild_loaders(context, train, val)


@dataclass(frozen=True)
class EarlierAttempt:
    """Whether an earlier attempt began this fit, and how long the loggers' files were before it."""

    exists: bool = False
    logged: Mapping[str, int] | None = None

    @classmethod
    def find(cls, store: CheckpointStore) -> EarlierAttempt:
        """Read the note of the folder's last owner; a first start counts the lines of the files."""
        known = read_json(store.folder / "owner.json").get("logged")
        if isinstance(known, dict):
            return cls(True, known)
        return cls(False, count_logged_lines(store.folder.parent))


@dataclass(frozen=True)
class ResumeCheckpoint:
    """A valid checkpoint, open on this rank."""

    reader: CheckpointReader
    state: dict[str, Any]
    own: bool

    def is_over(self, config: TrainConfig) -> bool:
        """Whether the training had finished and was not made longer since."""
        at_end = self.own and (self.reader.path.parent / FINISHED).exists()
        if not (self.reader.manifest.finished or at_end):
            return False
        now = (config.last_epoch, config.max_steps, config.max_seconds)
        return not any(map(_is_more, now, self.state["progress"]["limits"]))


def _is_more(now: float | None, before: float | None) -> bool:
    return before is not None and (now is None or now > before)


def find_checkpoint(context: TrainContext, store: CheckpointStore) -> ResumeCheckpoint | None:
    """Find what ``TrainConfig(resume=…)`` means: this fit's newest checkpoint, else the one named.

    Collective. A job that was started with a named checkpoint and is requeued resumes from its own.
    """
    resume = context.config.resume
    if resume is False:
        return None

    def search(check: Callable[[Path], Sequence[str]]) -> tuple[str, bool] | None:
        saved = find_newest_valid(store, check, lambda text: context.say(f"WARNING: {text}"))
        if saved is not None:
            return str(saved.path), True
        if resume in (True, "auto"):
            return None
        same_fit = Path(str(resume)) / store.folder.name  # a run folder: its fit with this number
        named = same_fit if CheckpointStore(same_fit).list_saved() else resume
        return str(resolve_resume_path(str(named), check, context.say)), False

    ranks = context.communicator
    found = search(find_problems) if ranks.size == 1 else _search_together(search, ranks)
    if found is None:
        return None
    return _open(Path(found[0]), found[1], ranks)


def _open(path: Path, own: bool, ranks: Communicator) -> ResumeCheckpoint:
    """Read the manifest and the small state on every rank; an error on one is raised on all."""
    found, problem = None, ""
    try:
        reader = CheckpointReader(path)
        found = ResumeCheckpoint(reader, reader.blob("state"), own)
    except AllranksError as error:
        problem = str(error)
    for rank, text in enumerate(ranks.all_gather(problem)):
        if text:
            raise UsageError(text if ranks.size == 1 else f"Rank {rank}: {text}")
    assert found is not None
    return found


def _search_together(search: Callable[..., Any], ranks: Communicator) -> Any:
    """Search on rank 0; whenever it checks a checkpoint, each rank verifies its share of the files."""
    found, problem = None, ""
    if ranks.rank == 0:
        try:
            found = search(lambda path: _verify_together(path, ranks))
        except AllranksError as error:
            problem = str(error)
        ranks.broadcast(None)
    else:
        path: str | None = None
        while (path := ranks.broadcast(path)) is not None:
            ranks.all_gather(_verify_share(Path(path), ranks.rank, ranks.size))
    found, problem = ranks.broadcast((found, problem))
    if problem:
        raise UsageError(problem)
    return found


def _verify_together(path: Path, ranks: Communicator) -> list[str]:
    ranks.broadcast(str(path))
    answers = ranks.all_gather(_verify_share(path, ranks.rank, ranks.size))
    # A rank that does not see the folder proves nothing: NFS caches for a while that it was not there.
    unseen = [other for other, found in enumerate(answers) if found is None]
    found = [text for texts in answers if texts is not None for text in texts]
    for other in unseen:
        found += _verify_share(path, other, ranks.size) or []
    return found


def _verify_share(path: Path, rank: int, size: int) -> list[str] | None:
    """Return what is wrong with this rank's share of the files; None when it cannot see them."""
    manifest = read_saved(path).manifest
    if manifest is None:
        return find_problems(path) if rank == 0 else None
    return find_problems(path, sorted(manifest.files)[rank::size])
