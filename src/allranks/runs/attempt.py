"""One attempt of a run: a submission, a requeue, a restart.

The agent writes these files on the nodes; a file that is half-written is left out, never fatal.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from allranks.runs.atomic_files import (
    integer,
    now,
    parse_stamp,
    read_bytes,
    read_json,
    strings,
    write_json,
)
from allranks.runs.exit_reasons import describe_exit, error_line
from allranks.runs.progress_file import INTERRUPTED_FILE, AttemptProgress

WITH_SUCCESSOR = ("restart", "requeue", "resubmit", "requeued")
"""What ``next`` says of an attempt that another one follows."""
_RANK_FILE = re.compile(r"^rank-(\d+)\.(log|json)$")


@dataclass(frozen=True)
class Rank:
    """One training process as the agent started it."""

    rank: int
    local_rank: int | None = None
    node_rank: int | None = None
    world_size: int | None = None
    host: str = ""
    pid: int | None = None
    cpus: str = ""
    devices: str = ""
    start: str = ""
    launcher: str = ""


@dataclass(frozen=True)
class Failure:
    """How one rank failed."""

    rank: int
    host: str = ""
    local_rank: int | None = None
    pid: int | None = None
    exit_code: int | None = None
    signal: str = ""
    time: str = ""
    traceback: str = ""
    command: str = ""

    @property
    def how(self) -> str:
        """How it ended: ``exit code 1``, ``killed by SIGKILL, perhaps out of memory (exit code 137)``."""
        return describe_exit(self.exit_code, self.signal)

    @property
    def error(self) -> str:
        """The error in one line; empty when it left none."""
        return error_line(self.traceback)


@dataclass(frozen=True)
class Attempt:
    """A folder below ``attempts/``."""

    path: Path
    number: int
    scheduler: str = ""
    job_id: str = ""
    restart: int = 0
    """How often Slurm had restarted the job before this attempt."""
    launcher: str = ""
    array_task: str = ""
    """Which task of a job array this is; empty when it is none."""
    hosts: list[str] = field(default_factory=list)
    start: datetime | None = None
    end: datetime | None = None
    exit_code: int | None = None
    """None while it runs, and after a hard kill: only the scheduler can tell the two apart."""
    outcome: str = ""
    """finished, interrupted, failed, cancelled, timed out, preempted, node lost, killed."""
    reason: str = ""
    """Why it ended, as a sentence."""
    next: str = ""
    """What follows: done, restart, requeue, resubmit, requeued (by Slurm itself) or stop."""
    lost_nodes: list[str] = field(default_factory=list)
    """Nodes that failed in it, found out by the attempt after it."""

    @classmethod
    def open(cls, path: Path) -> Attempt:
        """Read an attempt from its folder."""
        about, end = read_json(path / "attempt.json"), read_json(path / "end.json")
        return cls(
            path=path,
            number=integer(path.name) or integer(about.get("attempt")) or 0,
            scheduler=_text(about, "scheduler"),
            job_id=_text(about, "job_id"),
            restart=integer(about.get("restart")) or 0,
            launcher=_text(about, "launcher"),
            array_task=_text(about, "array_task"),
            hosts=strings(about.get("hosts")),
            start=parse_stamp(about.get("start")),
            end=parse_stamp(end.get("end")),
            exit_code=integer(end.get("exit_code")),
            outcome=_text(end, "outcome") or _outcome(path, integer(end.get("exit_code"))),
            reason=_text(end, "reason"),
            next=_text(end, "next"),
            lost_nodes=strings(read_json(path / "nodes.json").get("nodes")),
        )

    def finish(self, exit_code: int | None, **about: str) -> Attempt:
        """Write ``end.json``: when, how (``outcome``, ``reason``) and what follows (``next``)."""
        write_json(self.path / "end.json", {"exit_code": exit_code, "end": now(), **about})
        return Attempt.open(self.path)

    @property
    def has_successor(self) -> bool:
        """Whether another attempt follows this one."""
        return self.next in WITH_SUCCESSOR

    @property
    def is_over(self) -> bool:
        """Whether it has ended and no attempt follows."""
        return bool(self.outcome) and not self.has_successor

    @property
    def progress(self) -> AttemptProgress | None:
        """The progress of its ranks; None when they recorded none."""
        return AttemptProgress.read(self.path)

    @property
    def interrupted(self) -> str:
        """Why its ranks saved and exited on purpose; empty when they did not."""
        return interrupted(self.path)

    def log_files(self) -> dict[int, Path]:
        """Return the log of each rank, in rank order."""
        return _numbered(self.path / "ranks", "log")

    def ranks(self) -> list[Rank]:
        """Return the ranks that started; one whose record was lost has only its number."""
        described = _numbered(self.path / "ranks", "json")
        numbers = sorted(described.keys() | self.log_files().keys())
        return [_rank(n, read_json(described[n]) if n in described else {}) for n in numbers]

    def failures(self) -> list[Failure]:
        """Return the ranks that failed, in order of time."""
        found = _numbered(self.path / "failures", "json").items()
        failures = [_failure(rank, read_json(path)) for rank, path in found]
        # A record without a time is a half-written one: last, yet not lost.
        return sorted(failures, key=lambda failure: (failure.time or "~", failure.rank))

    def first_failure(self) -> Failure | None:
        """Return the failure that most likely caused the others."""
        return next(iter(self.failures()), None)


def interrupted(attempt: Path) -> str:
    """Return the reason that ranks recorded when they exited on purpose, else an empty string."""
    try:
        text = read_bytes(attempt / INTERRUPTED_FILE).decode("utf-8", "replace")
    except OSError:
        return ""
    return text.strip() or "it was asked to"


def _outcome(path: Path, code: int | None) -> str:
    """Return the outcome where the job script recorded only an exit code."""
    if code is None:
        return ""
    if code == 0:
        return "finished"
    return "interrupted" if interrupted(path) else "failed"


def make_attempt(folder: Path, about: dict[str, Any]) -> Attempt:
    """Make a new numbered folder. mkdir decides between two nodes that do so at the same time."""
    folder.mkdir(parents=True, exist_ok=True)
    number = max(attempt_numbers(folder), default=0) + 1
    while True:
        try:
            (folder / str(number)).mkdir()
            break
        except FileExistsError:
            number += 1
    write_json(folder / str(number) / "attempt.json", {"attempt": number} | about)
    return Attempt.open(folder / str(number))


def attempt_numbers(folder: Path) -> list[int]:
    """Return the numbers of the attempts in ``attempts/``, in order."""
    try:
        return sorted(int(child.name) for child in folder.iterdir() if child.name.isdecimal())
    except OSError:
        return []


def _numbered(folder: Path, kind: str) -> dict[int, Path]:
    """Return the files of ranks by number, ``rank-00003.log`` by 3, in order; none of an absent folder."""
    try:
        matches = [_RANK_FILE.match(child.name) for child in folder.iterdir()]
    except OSError:
        return {}
    numbers = {int(m[1]): folder / m[0] for m in matches if m and m[2] == kind}
    return dict(sorted(numbers.items()))


def _rank(number: int, about: dict[str, Any]) -> Rank:
    return Rank(
        rank=number,
        local_rank=integer(about.get("local_rank")),
        node_rank=integer(about.get("node_rank")),
        world_size=integer(about.get("world_size")),
        host=_text(about, "host"),
        pid=integer(about.get("pid")),
        cpus=_text(about, "cpus"),
        devices=_text(about, "devices"),
        start=_text(about, "start"),
        launcher=_text(about, "launcher"),
    )


def _failure(number: int, about: dict[str, Any]) -> Failure:
    return Failure(
        rank=number,
        host=_text(about, "host"),
        local_rank=integer(about.get("local_rank")),
        pid=integer(about.get("pid")),
        exit_code=integer(about.get("exit_code")),
        signal=_text(about, "signal"),
        time=_text(about, "time"),
        traceback=_text(about, "traceback"),
        command=_text(about, "command"),
    )


def _text(about: dict[str, Any], key: str) -> str:
    """Return a value as text; a list (CPUs, a command) is joined by spaces."""
    value = about.get(key)
    if value is None:
        return ""
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
