"""The process of a run that is not a Slurm job: on which machine, and inside which job."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from allranks.runs.atomic_files import integer, read_json, write_json
from allranks.runs.run_folder import Run

_SIGNS = (
    "attempt.json", "progress.json", "steps.jsonl", "nodes/node-00000.jsonl", "ranks/rank-00000.log",
)  # fmt: skip
"""Files of an attempt that are written as long as it runs."""


@dataclass(frozen=True)
class RunProcess:
    """The process of a run, as ``run.json`` has it."""

    host: str = ""
    """Empty where it was not recorded, or not yet."""
    pid: int | None = None
    started: str = ""
    """As `process_start` gives it."""
    job_id: str = ""
    """The Slurm job that it runs inside of, which may outlast it."""

    @property
    def is_here(self) -> bool:
        """Whether it is this machine, which alone can see the process."""
        return self.host == os.uname().nodename

    @property
    def live_pid(self) -> int | None:
        """Its process id; None when it has ended or is on another machine."""
        if self.pid is None or not self.is_here or not self.started:
            return None
        return self.pid if process_start(self.pid) == self.started else None


def process_of(run: Run) -> RunProcess:
    """Read the process of a run from ``run.json``; values that make no sense are left out."""
    about = read_json(run.path / "run.json")
    job_id = str(about.get("inside_job") or "")
    return RunProcess(
        host=str(about.get("host") or ""),
        pid=integer(about.get("pid")),
        started=str(about.get("started") or ""),
        job_id=job_id if job_id.isdecimal() else "",
    )


def process_start(pid: int) -> str | None:
    """Return the start time of a process in kernel ticks, which a later process of the same id does not have."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None


def record_process(run: Run) -> None:
    """Record that this process is the run, for ``ps`` and ``cancel``."""
    about = read_json(run.path / "run.json")
    me = os.getpid()
    about |= {"pid": me, "started": process_start(me), "host": os.uname().nodename}
    about.pop("inside_job", None)  # of an earlier attempt
    if job_id := os.environ.get("SLURM_JOB_ID"):
        about["inside_job"] = job_id
    write_json(run.path / "run.json", about)


def last_activity(run: Path, attempt: Path) -> float:
    """Return when an attempt last wrote anything that a running one writes, in seconds since 1970; else 0."""
    return max(map(_changed, [run / "metrics.jsonl", *(attempt / name for name in _SIGNS)]))


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
