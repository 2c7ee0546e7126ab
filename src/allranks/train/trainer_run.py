"""The run folder of a training: the one that allranks made, or a new one."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from allranks.core.background_thread import background_thread
from allranks.errors import Interrupted
from allranks.runs.atomic_files import now, write_json
from allranks.runs.attempt import attempt_numbers
from allranks.runs.progress_file import current_attempt
from allranks.runs.run_folder import Run
from allranks.runs.run_process import record_process
from allranks.runtime.agent.local_ranks import before_exit
from allranks.train.config import TrainConfig

_own: dict[str, Path] = {}
"""The folders that this process made, so that several fits of one script share one."""
_fits: dict[Path, int] = {}
"""How many fits this process started in each run folder."""


def make_folder(root: str, name: str | None) -> Path:
    """Return the folder, on rank 0: ALLRANKS_RUN_DIR, or ``<root>/<name>-<stamp>``, made once."""
    if given := os.environ.get("ALLRANKS_RUN_DIR"):
        return Path(given)
    key = f"{root}/{name}"
    if key not in _own:
        _own[key] = _new_run(root, name or script_name())
    return _own[key]


def checkpoint_folder(run: Path) -> Path:
    """Return the folder of the next fit of this process: ``checkpoints``, ``checkpoints-2`` …

    A restarted script makes the same fits in the same order, so each finds its own.
    """
    number = _fits[run] = _fits.get(run, 0) + 1
    return run / ("checkpoints" if number == 1 else f"checkpoints-{number}")


def fit_number(run: Path) -> int:
    """Return the number of the current ``fit`` in this process."""
    return _fits.get(run, 1)


def lost_attempt(run: Path) -> Path | None:
    """Return the attempt before this one, whose last steps may be repeated; None without one."""
    numbers = attempt_numbers(run / "attempts")
    own = current_attempt()
    last = int(own.name) if own is not None and own.name.isdigit() else max(numbers, default=0)
    before = [number for number in numbers if number < last]
    return run / "attempts" / str(before[-1]) if before else None


def present_attempt(run: Path) -> Path | None:
    """Return the attempt of this process; None in a folder without attempts."""
    own, numbers = current_attempt(), attempt_numbers(run / "attempts")
    return own or (run / "attempts" / str(numbers[-1]) if numbers else None)


def attempt_folder(run: Path) -> Path:
    """Return where the ranks of this attempt write, as `allranks logs` expects it."""
    last = Run.open(run).last_attempt
    return run if last is None else last.path


def write_settings(folder: Path, config: TrainConfig) -> None:
    """Write ``training.json``: the configuration as given, hyperparameters included."""
    plain = {entry.name: getattr(config, entry.name) for entry in fields(config)}
    write_json(folder / "training.json", {name: _plain(value) for name, value in plain.items()})


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return str(value)


def script_name() -> str:
    """Return the name of the script: train for train.py, the package for -m package."""
    main = Path(sys.argv[0] or "python")
    return main.parent.name if main.stem == "__main__" else main.stem or "python"


def _new_run(root: str, name: str) -> Path:
    command = [sys.executable, *sys.orig_argv[1:]]
    run = Run.create(Path(root), name, scheduler="local", cwd=Path.cwd(), command=command)
    record_process(run)
    attempt = run.new_attempt(launcher="python", hosts=[os.uname().nodename])
    owner = os.getpid()

    def versions() -> None:
        from allranks.runs.package_versions import write_versions

        with suppress(OSError):  # a full disk is reported where it matters
            write_versions(run.path)

    noting = background_thread(versions, "allranks-versions")
    noting.start()

    def end(code: int | None = None) -> None:
        if os.getpid() == owner and attempt.path.is_dir():
            noting.join(1.0)
            if code is None:
                code = 1 if hasattr(sys, "last_value") else 0
            if not code and attempt.interrupted:
                code = Interrupted.EXIT_CODE
            write_json(attempt.path / "end.json", {"exit_code": code, "end": now()})

    atexit.register(end)
    before_exit.append(end)
    return run.path
