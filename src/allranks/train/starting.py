"""Where a ``fit`` begins: anew, or from the checkpoint that is meant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allranks.errors import UsageError
from allranks.runs.atomic_files import read_json
from allranks.runtime.world.communicator import get_communicator
from allranks.train import resuming
from allranks.train.checkpoint.store import CheckpointStore
from allranks.train.finding import find, note_finished
from allranks.train.loggers.undo import lines_there
from allranks.train.saving import Saving
from allranks.train.session import share_result

if TYPE_CHECKING:
    from allranks.train.loop import Fit
    from allranks.train.trainer import Trainer


@dataclass(frozen=True)
class Beginning:
    """How a fit begins."""

    gone_on: GoneOn | None
    """From which checkpoint; None when it starts anew."""
    resumed: bool
    """Whether what the loggers wrote before belongs to it."""
    logged: Mapping[str, int] | None
    """How much of that; None leaves it as it is."""


def begin(trainer: Trainer, fit: Fit, store: CheckpointStore, train: Any, val: Any) -> Beginning:
    """Take the folder over, and take up the checkpoint that is meant, if there is one. Collective."""
    config, world = trainer.config, trainer.world
    begun = Begun.before(store) if world.is_main else Begun()
    trainer._saving = Saving(trainer, fit, store)
    if config.checkpoint:
        trainer._saving.take_over({"logged": begun.logged})
        if config.resume is False:
            share_result(lambda: _set_aside(trainer, store), world, trainer.device)
    gone_on = _resume(trainer, fit, store, train, val)
    is_over = gone_on is not None and gone_on.is_over
    if world.is_main and config.checkpoint and not is_over:
        note_finished(store.folder, False)
    if world.is_main:
        trainer._saving.look_back(0.0 if gone_on is None else gone_on.save_seconds)
    logged = begun.logged if begun.was_there else None
    if gone_on is not None and gone_on.own:
        logged = gone_on.logged
    return Beginning(gone_on, gone_on is not None or begun.was_there, logged)


def _set_aside(trainer: Trainer, store: CheckpointStore) -> None:
    """What an earlier start saved must not be taken for this one's; nothing of it is deleted."""
    try:
        aside = store.set_aside()
    except OSError as error:
        raise UsageError(
            f"resume=False: the checkpoints in {store.folder} cannot be moved aside: {error.strerror}.\n"
            "Move them yourself, or give another run folder."
        ) from None
    if aside is not None:
        trainer.say(f"resume=False: the checkpoints of an earlier start were moved to {aside}.")


@dataclass(frozen=True)
class GoneOn:
    """A training that goes on from a checkpoint; its files are closed again."""

    path: Path
    own: bool
    is_over: bool
    logged: Mapping[str, int]
    save_seconds: float


def _resume(
    trainer: Trainer, fit: Fit, store: CheckpointStore, train: Any, val: Any
) -> GoneOn | None:
    """Take up the checkpoint that is meant, if there is one. Collective."""
    found = find(trainer, store)
    if found is None:
        return None
    resuming.misfits(fit, found.reader, found.state)
    _keep_seed(trainer, fit, found.state["progress"]["seed"], train, val)
    resuming.load(trainer, fit, found.reader, found.state)
    over = get_communicator(trainer.world.size).all_gather(found.is_over(trainer.config))[0]
    manifest, logged = found.reader.manifest, found.state["progress"]["logged"]
    return GoneOn(found.reader.path, found.own, over, logged, manifest.seconds)


def _keep_seed(trainer: Trainer, fit: Fit, seed: int, train: Any, val: Any) -> None:
    """The data goes on in the order that the training began with, whatever the seed is now."""
    engine = fit.engine
    if seed == engine.session.seed:
        return
    if trainer.config.seed is not None:
        trainer.say(f"seed={trainer.config.seed}: the training began with {seed}, which stays.")
    engine.session = replace(engine.session, seed=seed)
    close_loaders(fit)
    fit.loader = engine.distribute(train, training=True)
    fit.val_loader = None if val is None else engine.distribute(val, training=False)
    fit.parts.total_of = fit.loader.total_of
    trainer._remake_step(fit)


@dataclass(frozen=True)
class Begun:
    """Whether an earlier attempt began this fit, and what the loggers' files held before it."""

    was_there: bool = False
    logged: Mapping[str, int] | None = None

    @classmethod
    def before(cls, store: CheckpointStore) -> Begun:
        """From the note of the last owner; a first start counts the lines that are there."""
        known = read_json(store.folder / "owner.json").get("logged")
        if isinstance(known, dict):
            return cls(True, known)
        return cls(False, lines_there(store.folder.parent))


def close_loaders(fit: Fit) -> None:
    """End the workers of its data."""
    for each in (fit.loader, fit.val_loader):
        if each is not None:
            each.close()
