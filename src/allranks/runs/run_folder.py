"""A run: one folder with everything about one job."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allranks.core.redaction import redact_words
from allranks.errors import RunNotFoundError, UsageError
from allranks.runs.atomic_files import (
    is_there,
    now,
    parse_stamp,
    read_bytes,
    read_json,
    strings,
    write_json,
)
from allranks.runs.attempt import Attempt, attempt_numbers, make_attempt
from allranks.runs.run_index import register

if TYPE_CHECKING:
    from allranks.runs.metrics_tables import Metrics

_UNSAFE = re.compile(r"[^\w.+=@-]+", re.UNICODE)
_FOLDER = re.compile(r"^(?P<name>.+?)-(?P<stamp>\d{8}-\d{6})(?:-(?P<copy>\d+))?$")
RESUBMITTED = "resubmitted"
"""The file with the ids of jobs that a job script submitted to continue in."""
_SIGNS = ("run.json", "job.sh", "job.toml", "plan.json", "attempts")


@dataclass(frozen=True)
class Run:
    """A run folder, with the fields of its ``run.json``. ``Run("runs/x")`` reads it, as ``Run.open`` does."""

    path: Path
    name: str = ""
    id: str = ""
    """The folder's name: the name and the time, unique among its neighbours."""
    created: datetime | None = None
    scheduler: str = ""
    job_ids: list[str] = field(default_factory=list)
    """Every Slurm job of this run, the latest last."""
    cwd: str = ""
    command: list[str] = field(default_factory=list)

    if TYPE_CHECKING:  # as the dataclass makes it, but the path may be text

        def __init__(
            self,
            path: str | Path,
            name: str = "",
            id: str = "",  # noqa: A002
            created: datetime | None = None,
            scheduler: str = "",
            job_ids: list[str] = ...,
            cwd: str = "",
            command: list[str] = ...,
        ) -> None: ...

    def __post_init__(self) -> None:
        if not self.id:
            for name, value in _read_folder(self.path).items():
                object.__setattr__(self, name, value)

    @classmethod
    def create(
        cls, root: Path, name: str, *, scheduler: str, cwd: str | Path, command: Sequence[str]
    ) -> Run:
        """Make ``<root>/<name>-<stamp>`` (``-2`` … for two in one second); the command loses its secrets."""
        try:
            path = _make_folder(Path(root).absolute(), safe_name(name))
        except OSError as error:
            raise UsageError(
                f"The run folder cannot be made in {Path(root).absolute()}: {error.strerror}.\n"
                "Choose another place: --runs DIR, or set ALLRANKS_RUNS."
            ) from None
        about = {
            "name": name,
            "id": path.name,
            "created": now(),
            "scheduler": scheduler,
            "job_ids": [],
            "cwd": str(cwd),
            "command": redact_words(command),
        }
        write_json(path / "run.json", about)
        run = cls.open(path)
        register(run.path, run.name)
        return run

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """Read a run folder. A folder without any file of a run is refused."""
        return cls(**_read_folder(path))

    @property
    def attempts(self) -> list[Attempt]:
        """The attempts of this run so far, in order."""
        folder = self.path / "attempts"
        return [Attempt.open(folder / str(number)) for number in attempt_numbers(folder)]

    @property
    def last_attempt(self) -> Attempt | None:
        """The current attempt, or the one that ended last."""
        folder = self.path / "attempts"
        numbers = attempt_numbers(folder)
        return Attempt.open(folder / str(numbers[-1])) if numbers else None

    @property
    def array(self) -> str:
        """Which tasks the job array of this run has; empty when it is none."""
        return str(read_json(self.path / "run.json").get("array") or "")

    @property
    def finished(self) -> bool:
        """Whether its training finished; of an array, that of every task that started."""
        last = {attempt.array_task: attempt for attempt in self.attempts}
        return bool(last) and all(one.outcome == "finished" for one in last.values())

    def metrics(self) -> Metrics:
        """Return the metrics as tables: ``run.metrics().to_pandas("train")``."""
        from allranks.runs.metrics_tables import Metrics

        return Metrics(self.path)

    def new_attempt(
        self,
        *,
        scheduler: str | None = None,
        job_id: str = "",
        restart: int = 0,
        launcher: str = "",
        hosts: Sequence[str] = (),
    ) -> Attempt:
        """Make the folder of a new attempt, with ``attempt.json``."""
        about = {
            "scheduler": self.scheduler if scheduler is None else scheduler,
            "job_id": job_id,
            "restart": restart,
            "launcher": launcher,
            "hosts": list(hosts),
            "start": now(),
        }
        return make_attempt(self.path / "attempts", about)

    def add_job_id(self, job_id: str) -> Run:
        """Record a Slurm job, here and in the index, so that commands find the run by it."""
        about = read_json(self.path / "run.json") or {"name": self.name, "id": self.id}
        known = strings(about.get("job_ids"))
        if job_id not in known:
            write_json(self.path / "run.json", about | {"job_ids": [*known, job_id]})
            register(self.path, self.name, job_id)
        return Run.open(self.path)

    def remove(self) -> None:
        """Delete the folder; the index skips it from then on."""
        shutil.rmtree(self.path)


def _read_folder(path: str | Path) -> dict[str, Any]:
    """Return the fields of a run from its folder."""
    folder = Path(path).absolute()
    if not any(is_there(folder / sign) for sign in _SIGNS):
        check_readable(folder)
        raise RunNotFoundError(
            f"{folder} is not a run folder: it has no run.json.\nList the runs: allranks ps"
        )
    about = read_json(folder / "run.json")
    name, stamp = split_id(folder.name)
    return {
        "path": folder,
        "name": str(about.get("name") or name),
        "id": folder.name,
        "created": parse_stamp(about.get("created")) or _local_time(stamp),
        "scheduler": str(about.get("scheduler") or ""),
        "job_ids": known_jobs(folder, about),
        "cwd": str(about.get("cwd") or ""),
        "command": strings(about.get("command")),
    }


def check_readable(folder: Path) -> None:
    """Raise RunNotFoundError for a folder without permission to read."""
    try:
        (folder / "run.json").stat()
    except PermissionError:
        raise RunNotFoundError(
            f"{folder} cannot be read: Permission denied.\n"
            "Ask its owner for the right to read it, or list your own runs: allranks ps"
        ) from None
    except OSError:
        return


def known_jobs(folder: Path, about: Mapping[str, Any]) -> list[str]:
    """Return the Slurm jobs of a run: those submitted by the command, then those by its job scripts.

    A script adds a line to a file of its own, since it may run while the command writes ``run.json``.
    """
    try:
        lines = read_bytes(folder / RESUBMITTED).decode("utf-8", "replace").split()
    except OSError:
        lines = []
    known = strings(about.get("job_ids"))
    own = [job for job in lines if job.isdecimal()]
    return sorted(dict.fromkeys([*known, *own]), key=int) if own else known


def safe_name(name: str) -> str:
    """Return a name that is valid on every file system and still readable."""
    safe = _UNSAFE.sub("-", name).strip("-.")
    return safe.encode()[:100].decode(errors="ignore") or "run"


def split_id(folder: str) -> tuple[str, str]:
    """Return the name and the sortable time stamp in a folder's name; the stamp is empty when there is none."""
    if match := _FOLDER.match(folder):
        return match["name"], f"{match['stamp']}-{int(match['copy'] or 1):06}"
    return folder, ""


def _make_folder(root: Path, name: str) -> Path:
    if not root.exists():
        root.mkdir(parents=True, exist_ok=True)
        # Keeps runs out of git and out of the next snapshot without touching the user's .gitignore.
        (root / ".gitignore").write_text("*\n")
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    copy = 1
    while True:
        path = root / (f"{name}-{stamp}" + (f"-{copy}" if copy > 1 else ""))
        try:
            path.mkdir()
            return path
        except FileExistsError:
            copy += 1


def _local_time(stamp: str) -> datetime | None:
    try:
        local = datetime.strptime(stamp[:15], "%Y%m%d-%H%M%S")
    except ValueError:
        return None
    return local.astimezone(timezone.utc)
