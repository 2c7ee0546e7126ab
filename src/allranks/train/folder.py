"""The run folder as the Trainer sees it: the one that allranks made, or one of its own."""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path

from allranks.runs.files import now, write_json
from allranks.runs.folder import Run
from allranks.runs.process import note_process

_own: dict[str, Path] = {}
"""The folder that this process made, so that two trainings of one script share it."""


def make_folder(root: str, name: str | None) -> Path:
    """The folder on rank 0: ALLRANKS_RUN_DIR, or ``<root>/<name>-<stamp>``, made once."""
    if given := os.environ.get("ALLRANKS_RUN_DIR"):
        return Path(given)
    key = f"{root}/{name}"
    if key not in _own:
        _own[key] = _new_run(root, name or script_name())
    return _own[key]


def script_name() -> str:
    """What this process runs: train for train.py, the package for -m package."""
    main = Path(sys.argv[0] or "python")
    return main.parent.name if main.stem == "__main__" else main.stem or "python"


def _new_run(root: str, name: str) -> Path:
    command = [sys.executable, *sys.orig_argv[1:]]
    run = Run.create(Path(root), name, scheduler="local", cwd=Path.cwd(), command=command)
    note_process(run)
    attempt = run.new_attempt(launcher="python", hosts=[os.uname().nodename])
    owner = os.getpid()

    def end() -> None:
        if os.getpid() == owner and attempt.path.is_dir():
            code = 1 if hasattr(sys, "last_value") else 0
            write_json(attempt.path / "end.json", {"exit_code": code, "end": now()})

    atexit.register(end)
    return run.path
