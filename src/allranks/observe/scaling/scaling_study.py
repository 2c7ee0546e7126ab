"""A scaling study: the folder ``runs/studies/<name>-<stamp>`` with the request and the state of its points.

``study.json`` is written again at every change, so that a study that was killed can be resumed. Its points
are ordinary runs beside it, in ``runs/``. One process at a time may change a study: it holds a lock.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from pathlib import Path
from typing import IO, Any, TypeVar, cast

from allranks.core.shell import quote
from allranks.errors import JobError, RunNotFoundError, UsageError
from allranks.job.config_sources import file_layer, find_file
from allranks.job.field_parsing import text
from allranks.observe.scaling.sizes import AXES, SizeAxis, implied_kind
from allranks.runs.atomic_files import now, read_json, write_json
from allranks.runs.run_folder import Run, safe_name, split_id
from allranks.runs.run_lookup import runs_root

STUDIES = "studies"
"""The folder of all studies, beside the runs; without a stamp in its name it is taken for none."""
STUDY_FILE = "study.json"
PLACES = ("local", "allocation", "slurm")
WAITING, QUEUED, RUNNING, DONE, FAILED = "waiting", "queued", "running", "done", "failed"
_T = TypeVar("_T")


@dataclass
class Point:
    """One run of the training at one size."""

    size: int
    repeat: int = 1
    state: str = WAITING
    """waiting, queued, running, done or failed."""
    why: str = ""
    """Of a failed point, or what a queued one waits for."""
    run: str = ""
    """Its run folder; empty before it began."""
    job_id: str = ""
    nodes: int = 0
    ranks: int = 0
    gpus: int = 0
    cpus: int = 0
    """Cores of all nodes together that it takes; on this machine the threads of its ranks."""

    @property
    def open(self) -> bool:
        """Return whether it is queued or running."""
        return self.state in (QUEUED, RUNNING)


@dataclass
class Study:
    """The request of a study and its points."""

    name: str
    axis_name: str
    where: str
    """"local" (this machine), "allocation" (the one around) or "slurm" (a job for each point)."""
    path: Path = Path()
    """Its folder; see ``settle_in``."""
    values: dict[str, Any] = field(default_factory=dict)
    """The job as it was typed, without the sizes; secrets are not written down."""
    config: str | None = None
    gpu_type: str = ""
    kind: str | None = None
    """"strong", "weak", or None: as the script has it."""
    steps: int = 100
    metric: str | None = None
    samples: int | None = None
    one_by_one: bool = False
    threads: int | None = None
    """OpenMP's threads of a rank, the same at every size; None where the user says it."""
    machine_cpus: int | None = None
    """Cores of this machine, where the points run on it."""
    load: float | None = None
    """How many processes were at work on this machine when the study began."""
    secrets: list[str] = field(default_factory=list)
    """The names of variables that are not written down."""
    command: str = ""
    cwd: str = ""
    created: str = ""
    points: list[Point] = field(default_factory=list)

    @classmethod
    def open(cls, path: Path) -> Study:
        """Read a study from its folder."""
        about = read_json(path / STUDY_FILE)
        try:
            points = [_from_record(Point, entry) for entry in about["points"]]
            study: Study = _from_record(cls, {**about, "path": path.absolute(), "points": points})
        except (KeyError, TypeError, AttributeError):
            raise RunNotFoundError(
                f"{path} is not a scaling study: look at its {STUDY_FILE}."
            ) from None
        if study.axis_name not in AXES or study.where not in PLACES:
            raise RunNotFoundError(f"{path} is not a scaling study that this allranks knows.")
        return study

    def create_folder(self, root: Path) -> Study:
        """Create its folder below ``root``, where runs are, and save it there."""
        self.path = _make_folder(root.absolute(), safe_name(self.name))
        self.created, self.cwd = now(), str(Path.cwd())
        self.save()
        return self

    def save(self) -> None:
        """Write the study atomically."""
        content = asdict(self) | {"path": str(self.path), "values": self._values_without_secrets()}
        write_json(self.path / STUDY_FILE, content)

    def _values_without_secrets(self) -> dict[str, Any]:
        """Return the values that may be shared."""
        env = [one for one in self.values.get("env") or () if not self._is_secret(one)]
        return {**self.values, **({"env": env} if "env" in self.values else {})}

    def _is_secret(self, variable: str) -> bool:
        return variable.partition("=")[0] in self.secrets

    @property
    def is_queued(self) -> bool:
        """Whether each point is a job in the queue."""
        return self.where == "slurm"

    @property
    def is_local(self) -> bool:
        """Whether the points run on this machine."""
        return self.where == "local"

    @property
    def id(self) -> str:
        """Return the folder's name."""
        return self.path.name

    @property
    def axis(self) -> SizeAxis:
        return AXES[self.axis_name]

    @property
    def asked_kind(self) -> str | None:
        """Return "strong" or "weak" as requested or implied by placeholders; None: as the script has it."""
        words = (*(self.values.get("args") or ()), *(self.values.get("env") or ()))
        return self.kind or implied_kind(map(str, words))

    @property
    def sizes(self) -> list[int]:
        return sorted({point.size for point in self.points})

    @property
    def repeats(self) -> int:
        return max((point.repeat for point in self.points), default=1)

    def shares_cores(self, point: Point) -> bool:
        """Return whether its threads exceed the cores of this machine, so that its speed is unreliable."""
        if not self.is_local or point.gpus or not self.machine_cpus:
            return False
        return point.cpus > self.machine_cpus

    def at(self, size: int) -> list[Point]:
        """Return the points of one size."""
        return [point for point in self.points if point.size == size]

    def run_of(self, point: Point) -> Run | None:
        """Return its run, also when the whole folder of runs was moved."""
        if not point.run:
            return None
        path = Path(point.run)
        for place in (path, self.path.parent.parent / path.name):
            if (place / "run.json").exists():
                return Run.open(place)
        return None


def default_root(config: str | None = None) -> Path:
    """Return where studies are created and found unless --runs is given: the job file may name a folder."""
    path = Path(config) if config else find_file(Path.cwd())
    named = file_layer(path).values.get("runs") if path else None
    return Path(text(named)).absolute() if named else runs_root()


def find_study(reference: str, root: Path | None = None, config: str | None = None) -> Study:
    """Return the study of that folder, id or name (then the newest), or ``last``.

    Of a folder nothing else is asked; without ``root`` the others are where the job file has them.
    """
    path = Path(reference).expanduser()
    if (path / STUDY_FILE).is_file():
        return Study.open(path)
    folder = (root or default_root(config)) / STUDIES
    found = sorted((path.parent for path in folder.glob(f"*/{STUDY_FILE}")), key=_age)
    wanted = [one for one in found if reference in ("last", one.name, split_id(one.name)[0])]
    if wanted:
        return Study.open(wanted[-1])
    there = ", ".join(one.name for one in found[-5:])
    hint = (
        f"There are: {there}" if there else "There is none yet: allranks scale --procs 1,2 train.py"
    )
    raise RunNotFoundError(f"No study is called '{reference}' in {folder}. {hint}")


def _age(path: Path) -> tuple[str, str]:
    return split_id(path.name)[1], path.name


def _from_record(kind: type[_T], entry: Mapping[str, Any]) -> _T:
    """Return an object of the values that it knows; another version may have written more."""
    names = {one.name for one in fields(cast("Any", kind))}
    return kind(**{name: value for name, value in entry.items() if name in names})


def _make_folder(root: Path, name: str) -> Path:
    stamp, copy = datetime.now().strftime("%Y%m%d-%H%M%S"), 1
    try:
        if not root.exists():
            root.mkdir(parents=True)
            (root / ".gitignore").write_text("*\n")  # as every folder of runs has one
        (root / STUDIES).mkdir(exist_ok=True)
        while True:
            path = root / STUDIES / (f"{name}-{stamp}" + (f"-{copy}" if copy > 1 else ""))
            try:
                path.mkdir()
                return path
            except FileExistsError:
                copy += 1
    except OSError as error:
        raise UsageError(
            f"The study's folder cannot be made in {root}: {error.strerror}.\n"
            "Choose another place: --runs DIR, or set ALLRANKS_RUNS."
        ) from None


LOCK_FILE = "lock"
"""In the study's folder; contains the process that holds it."""


@contextmanager
def lock_study(folder: Path) -> Iterator[None]:
    """Hold a study while it is changed; raise JobError when another process holds it.

    A record lock: unlike that of flock, ranks that are forked meanwhile do not inherit it, and it ends
    with this process whatever becomes of them.
    """
    try:
        file = (folder / LOCK_FILE).open("a+", encoding="utf-8")
    except OSError as error:
        raise JobError(f"{folder} cannot be written: {error.strerror}.") from None
    with file:
        _lock(file, folder)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {os.uname().nodename}")
        file.flush()
        yield


def _lock(file: IO[str], folder: Path) -> None:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # held: systems differ in what they say
        file.seek(0)
        who = file.read().strip() or "another process"
        raise JobError(
            f"{folder.name} is in use by {who}.\n"
            f"Look at it: allranks scale --show {quote(str(folder))}; or end that process first."
        ) from None
    except OSError:
        pass  # a file system without locks: continue without one
