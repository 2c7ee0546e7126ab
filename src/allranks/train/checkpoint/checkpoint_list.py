"""List the checkpoints of a run, for ``allranks checkpoints``. Does not import torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from allranks.errors import UsageError
from allranks.runs.run_lookup import find_run
from allranks.train.checkpoint.checkpoint_folder import LATEST, CheckpointStore
from allranks.train.checkpoint.durable_io import ReadProblem
from allranks.train.checkpoint.manifest import NAME, SavedCheckpoint, parse_step_folder, read_saved
from allranks.train.checkpoint.valid_checkpoints import find_problems

BEST = "best"


@dataclass(frozen=True)
class CheckpointRow:
    """One checkpoint of the list."""

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
        """Return the fields for JSON."""
        return asdict(self)


def find_stores(reference: str) -> list[CheckpointStore]:
    """Return the checkpoint folders of a run, one per ``fit``; ``reference`` may be such a folder itself."""
    path = Path(reference).expanduser()
    if (path / NAME).exists():
        path = path.resolve().parent
    if path.is_dir() and any(parse_step_folder(each.name)[0] >= 0 for each in path.iterdir()):
        return [CheckpointStore(path)]
    run = find_run(reference)
    found = [each for each in run.path.glob("checkpoints*") if each.is_dir()]
    return [
        CheckpointStore(each)
        for each in sorted(found, key=lambda each: (len(each.name), each.name))
    ]


def list_checkpoints(store: CheckpointStore, *, verify: bool = False) -> list[CheckpointRow]:
    """List all checkpoints, the newest first, then the quarantined ones. ``verify`` reads every byte."""
    names: dict[str, list[str]] = {}
    for link, target in store.links().items():
        names.setdefault(target, []).append(link)
    found = [_row(saved, names.get(saved.path.name, []), verify) for saved in store.list_saved()]
    for path, reason in store.list_quarantined():
        found.append(_describe(read_saved(path), "set aside", [reason], []))
    return found


def _row(saved: SavedCheckpoint, names: list[str], verify: bool) -> CheckpointRow:
    if saved.newer:
        return _describe(saved, "newer", [saved.problem], names)
    wrong = find_problems(saved.path, sizes_only=not verify)
    return _describe(saved, _state(wrong, verify), wrong, names)


def _state(wrong: list[str], verify: bool) -> str:
    if any(isinstance(text, ReadProblem) for text in wrong):
        return "unreadable"
    return "broken" if wrong else "verified" if verify else "ok"


def _describe(
    saved: SavedCheckpoint, state: str, wrong: list[str], names: list[str]
) -> CheckpointRow:
    step = parse_step_folder(saved.path.name.partition(".")[0])[0]
    plain = CheckpointRow(step, str(saved.path), state, wrong, names)
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


def choose_checkpoint(store: CheckpointStore, step: int | None, best: bool) -> Path:
    """Return the step folder of a step, the best, or the newest."""
    there = store.list_saved()
    if not there:
        raise UsageError(f"{store.folder} has no checkpoints yet.")
    if best:
        if BEST not in store.links():
            named = ", ".join(name for name in store.links() if name != LATEST)
            raise UsageError(
                f"{store.folder} has no checkpoint named 'best': the training monitored no metric.\n"
                f"Use --step N{f' (or one of these names: {named})' if named else ''}."
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
