"""What the job of a run says of its script: whether it trains with a Trainer."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from allranks.imports import scan
from allranks.runs.files import is_there, read_json
from allranks.runs.records import plan_values

_TELLING = frozenset({"allranks.Trainer", "allranks.TrainConfig", "allranks.train"})


def has_trainer(run: Path) -> bool:
    """Whether there is one already, or the script imports it; False as well where nobody can tell."""
    return is_there(run / "training.json") or _imports_trainer(run)


@lru_cache(maxsize=256)
def _imports_trainer(run: Path) -> bool:
    script = Path(plan_values(read_json(run / "plan.json")).get("script", ""))
    modules = scan(script).modules if script.is_file() else frozenset()
    named = {name for name in modules if name.startswith("allranks.")}
    return bool(modules & _TELLING) or ("allranks" in modules and not named)
