"""The process that a run of this machine lives in."""

from __future__ import annotations

import os
from pathlib import Path

from allranks.runs.files import read_json, write_json
from allranks.runs.folder import Run


def process_start(pid: int) -> str | None:
    """When a process began, as the kernel counts it: tells it from a later one of the same number."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None


def note_process(run: Run) -> None:
    """Write down which process a run lives in, for ``ps`` and ``cancel``."""
    about = read_json(run.path / "run.json")
    me = os.getpid()
    where = {"pid": me, "started": process_start(me), "host": os.uname().nodename}
    write_json(run.path / "run.json", about | where)
