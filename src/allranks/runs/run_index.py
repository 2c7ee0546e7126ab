"""The index: where runs were made, one JSON line each, below the user's state folder.

It lets commands find a run from any folder and by job id without opening thousands of files. Without
it everything else works, so errors are ignored.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class IndexEntry:
    """One line of the index: a run was made, or got a job id."""

    path: Path
    name: str
    job_id: str = ""


def index_file(env: Mapping[str, str] | None = None) -> Path:
    """``$XDG_STATE_HOME/allranks/runs.jsonl``, or below ``~/.local/state``."""
    env = os.environ if env is None else env
    state = env.get("XDG_STATE_HOME") or ""
    # The XDG rule: a relative path there is to be ignored.
    base = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    return base / "allranks" / "runs.jsonl"


def register(path: Path, name: str, job_id: str = "") -> None:
    """Append a line, in one write with O_APPEND: lines of two processes cannot mix.

    A home that is full, read-only or absent must not stop a job, so nothing is raised.
    """
    line = {"path": str(path), "name": name} | ({"job_id": job_id} if job_id else {})
    try:
        file = index_file()
        file.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            # The leading newline closes a line that a killed process left half-written.
            os.write(handle, ("\n" + json.dumps(line) + "\n").encode())
        finally:
            os.close(handle)
    except (OSError, RuntimeError):
        return


def read_index(env: Mapping[str, str] | None = None) -> Iterator[IndexEntry]:
    """Yield the entries, the oldest first; other lines are skipped."""
    try:
        with open(index_file(env), "rb") as file:
            for raw in file:
                if line := _parse(raw):
                    yield line
    except (OSError, RuntimeError):
        return


def _parse(raw: bytes) -> IndexEntry | None:
    try:
        content = json.loads(raw)
        path = Path(content["path"])
        line = IndexEntry(path, str(content["name"]), str(content.get("job_id", "")))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return line if path.is_absolute() else None
