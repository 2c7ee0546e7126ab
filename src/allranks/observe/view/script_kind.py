"""What the job of a run says of its script: whether it trains with a Trainer."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from allranks.core.python_imports import scan
from allranks.runs.atomic_files import is_there, read_json
from allranks.runs.run import Run
from allranks.runs.run_records import plan_values

_TELLING = frozenset({"allranks.Trainer", "allranks.TrainConfig", "allranks.train"})


def has_trainer(run: Run) -> bool:
    """Whether there is one already, or the script imports it; False as well where nobody can tell."""
    if is_there(run.path / "training.json"):
        return True
    return is_there(run.path / "plan.json") and _imports_trainer(run.path, run.cwd)


@lru_cache(maxsize=256)
def _imports_trainer(run: Path, cwd: str) -> bool:
    named = plan_values(read_json(run / "plan.json")).get("script", "")
    script = _kept(run, Path(os.path.normpath(run / cwd / named)))
    modules = scan(script).modules if script.is_file() else frozenset()
    ours = {name for name in modules if name.startswith("allranks.")}
    return bool(modules & _TELLING) or ("allranks" in modules and not ours)


def _kept(run: Path, script: Path) -> Path:
    """The run's own copy of it, where there is one: the script itself may be another by now."""
    root = read_json(run / "code.json").get("root")
    if not isinstance(root, str) or not script.is_relative_to(root):
        return script
    copy = run / "code" / script.relative_to(root)
    return copy if copy.is_file() else script
