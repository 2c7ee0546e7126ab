"""What a run has in checkpoints, for people and programs. Needs no torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from allranks.errors import UsageError
from allranks.runs.run_lookup import find_run
from allranks.train.checkpoint.manifest import NAME
from allranks.train.checkpoint.patience import CannotRead
from allranks.train.checkpoint.saved import Saved, place, saved_at
from allranks.train.checkpoint.store import LATEST, Store
from allranks.train.checkpoint.verify import problems

BEST = "best"


@dataclass(frozen=True)
class Row:
    """One checkpoint of a list."""

    step: int
    folder: str
    state: str
    """``ok`` (files and sizes), ``verified`` (every byte), ``broken``, ``unreadable``, ``set aside``, ``newer``."""
    problems: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    """Links that point at it."""
    epoch: int | None = None
    samples: int | None = None
    time: str = ""
    bytes: int | None = None
    world_size: int | None = None
    strategy: str = ""
    finished: bool = False
    metrics: dict[str, Any] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def stores(reference: str) -> list[Store]:
    """The folders of checkpoints of a run, one per ``fit``; ``reference`` may be such a folder itself."""
    path = Path(reference).expanduser()
    if (path / NAME).exists():
        path = path.resolve().parent
    if path.is_dir() and any(place(each.name)[0] >= 0 for each in path.iterdir()):
        return [Store(path)]
    run = find_run(reference)
    found = [each for each in run.path.glob("checkpoints*") if each.is_dir()]
    return [Store(each) for each in sorted(found, key=lambda each: (len(each.name), each.name))]


def rows(store: Store, *, verify: bool = False) -> list[Row]:
    """Every checkpoint, the newest first, then those set aside. ``verify`` reads every byte."""
    names: dict[str, list[str]] = {}
    for link, target in store.links().items():
        names.setdefault(target, []).append(link)
    found = [_row(saved, names.get(saved.path.name, []), verify) for saved in store.all()]
    for path, reason in store.quarantined():
        found.append(_described(saved_at(path), "set aside", [reason], []))
    return found


def _row(saved: Saved, names: list[str], verify: bool) -> Row:
    if saved.newer:
        return _described(saved, "newer", [saved.problem], names)
    wrong = problems(saved.path, sizes_only=not verify)
    return _described(saved, _state(wrong, verify), wrong, names)


def _state(wrong: list[str], verify: bool) -> str:
    if any(isinstance(text, CannotRead) for text in wrong):
        return "unreadable"
    return "broken" if wrong else "verified" if verify else "ok"


def _described(saved: Saved, state: str, wrong: list[str], names: list[str]) -> Row:
    step = place(saved.path.name.partition(".")[0])[0]
    plain = Row(step, str(saved.path), state, wrong, names)
    if (manifest := saved.manifest) is None:
        return plain
    return replace(
        plain,
        epoch=manifest.epoch,
        samples=manifest.samples,
        time=manifest.time,
        bytes=manifest.bytes,
        world_size=manifest.world_size,
        strategy=manifest.strategy,
        finished=manifest.finished,
        metrics=dict(manifest.metrics),
    )


def choose(store: Store, step: int | None, best: bool) -> Path:
    """The step folder that is meant: of a step, the best, or the newest."""
    there = store.all()
    if not there:
        raise UsageError(f"{store.folder} has no checkpoints yet.")
    if best:
        if BEST not in store.links():
            named = ", ".join(name for name in store.links() if name != LATEST)
            raise UsageError(
                f"{store.folder} has no checkpoint named 'best': the training watched no metric.\n"
                f"Choose one by --step N{f'; names there are: {named}' if named else ''}."
            )
        return (store.folder / BEST).resolve()
    chosen = [saved.path for saved in there if step is None or saved.step == step]
    if not chosen:
        steps = [str(saved.step) for saved in there]
        more = " …" if len(steps) > 8 else ""
        raise UsageError(
            f"{store.folder} has no checkpoint of step {step}.\n"
            f"There are: {', '.join(steps[:8])}{more}"
        )
    return chosen[0]
