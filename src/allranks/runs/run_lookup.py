"""Find a run by name, folder, Slurm job id, or ``last``.

Runs are looked for in ``./runs`` (or ``$ALLRANKS_RUNS``) and in the index of all runs ever made.
Names and times are read from the folders' names, so 10 000 runs cost one directory listing, not
10 000 opened files.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from allranks.errors import RunNotFoundError, UsageError
from allranks.runs.atomic_files import is_there, read_json
from allranks.runs.run_folder import Run, check_readable, known_jobs, safe_name, split_id
from allranks.runs.run_index import read_index

_TASK = re.compile(r"^\d+_(\d+)$")
_TASKS = re.compile(r"^(\d+)(?:-(\d+)(?::([1-9]\d*))?)?$")
_JOB_ID = re.compile(r"^(\d+)(?:[_+]\d+)?(?:\.\w+)?$")


@dataclass(frozen=True)
class _Entry:
    path: Path
    name: str
    stamp: str

    @property
    def age(self) -> tuple[str, str]:
        return self.stamp, self.path.name


def runs_root() -> Path:
    """Return the folder of new runs: ``$ALLRANKS_RUNS``, else ``./runs``."""
    return Path(os.environ.get("ALLRANKS_RUNS") or "runs").absolute()


def find_run(reference: str, root: Path | None = None) -> Run:
    """Return the run that ``reference`` names; RunNotFoundError with similar names otherwise."""
    if not reference.strip():
        raise RunNotFoundError("Name a run: its name, folder or job id, or `last`.")
    if reference == "last":
        return _last(_entries(root))
    if run := _by_folder(reference):
        return run
    entries = _entries(root)
    if match := _JOB_ID.match(reference):
        if run := _by_job_id(reference.partition(".")[0], match[1], entries):
            return run
        if not any(entry.name.startswith(reference) for entry in entries):
            raise _no_job(reference)
    return _by_name(reference, entries)


def find_task(reference: str, task: str | None = None) -> tuple[Run, str | None]:
    """Return the run, and the task of its job array: ``task``, or ``3`` of ``4711_3``."""
    run = find_run(reference)
    named = _TASK.match(reference)
    wanted = task or (named[1] if named else None)
    if wanted is None:
        return run, None
    begun = dict.fromkeys(one.array_task for one in run.attempts if one.array_task)
    if wanted in begun:
        return run, wanted
    if _in_array(wanted, run.array):
        return run, str(int(wanted))
    if not (run.array or begun):
        raise UsageError(f"{run.id} is no job array: there is no task {wanted} of it.")
    there = f"It has {run.array}." if run.array else f"It has {_some(list(begun))}."
    raise UsageError(f"{run.id} has no task {wanted}. {there}")


def _in_array(task: str, array: str) -> bool:
    """Return whether a task is one of ``0-9:2,15%4``."""
    if not task.isdecimal():
        return False
    parts = [_TASKS.match(part) for part in array.partition("%")[0].split(",")]
    ranges = [
        range(int(part[1]), int(part[2] or part[1]) + 1, int(part[3] or 1))
        for part in parts
        if part
    ]
    return any(int(task) in numbers for numbers in ranges)


def list_runs(root: Path | None = None, limit: int | None = None) -> list[Run]:
    """Return all runs whose folder exists, the newest first; at most ``limit`` of them."""
    runs: list[Run] = []
    for entry in sorted(_entries(root), key=lambda entry: entry.age, reverse=True):
        if limit is not None and len(runs) >= limit:
            break
        if run := _open(entry.path):
            runs.append(run)
    return runs


def _entries(root: Path | None) -> list[_Entry]:
    """Yield every run that may exist, each folder once."""
    paths = {line.path: line.name for line in read_index()}
    for path in _folders(root or runs_root()):
        paths.setdefault(path, "")
    return [_entry(path, name) for path, name in paths.items()]


def _folders(root: Path) -> Iterable[Path]:
    try:
        with os.scandir(root) as found:
            return [Path(item.path) for item in found if _looks_like_run(item)]
    except OSError:
        return []


def _looks_like_run(item: os.DirEntry[str]) -> bool:
    """Return whether a folder is a run, by its name, or where a user renamed it, by its content."""
    if not item.is_dir() or item.name.startswith("."):
        return False
    return bool(split_id(item.name)[1]) or is_there(Path(item.path, "run.json"))


def _entry(path: Path, name: str) -> _Entry:
    from_folder, stamp = split_id(path.name)
    if not stamp and (created := read_json(path / "run.json").get("created")):
        stamp = re.sub(r"\D", "", str(created))[:14].ljust(14, "0")
        stamp = f"{stamp[:8]}-{stamp[8:]}"
    return _Entry(path, name or from_folder, stamp)


def _open(path: Path) -> Run | None:
    try:
        return Run.open(path)
    except RunNotFoundError:
        return None


def _newest(entries: Iterable[_Entry]) -> Run | None:
    """Return the newest run whose folder exists; the index also has deleted ones."""
    for entry in sorted(entries, key=lambda entry: entry.age, reverse=True):
        if run := _open(entry.path):
            return run
    return None


def _last(entries: list[_Entry]) -> Run:
    if run := _newest(entries):
        return run
    raise RunNotFoundError(
        f"There is no run yet, neither in {runs_root()} nor in the index.\n"
        "Start one with: allranks run script.py"
    )


def _by_folder(reference: str) -> Run | None:
    """Return the run of a folder, also of one inside a run (an attempt, its ranks)."""
    path = Path(reference).expanduser()
    if not (is_there(path) and path.is_dir()):
        if os.sep in reference:
            check_readable(path)
            raise RunNotFoundError(f"There is no folder {path}.\nList the runs: allranks ps")
        return None
    path = path.absolute()
    for folder in (path, *path.parents[:4]):
        if is_there(folder / "run.json"):
            return Run.open(folder)
    return Run.open(path) if os.sep in reference else None


def _by_job_id(job_id: str, whole: str, entries: list[_Entry]) -> Run | None:
    """Return the newest run with that job. A reinstalled cluster starts its job ids over."""
    wanted = {job_id, whole}
    known = {line.path: line for line in read_index() if _same_job(line.job_id, wanted)}
    by_index = [entry for entry in entries if entry.path in known]
    if run := _newest(by_index):
        return run
    return _newest(
        entry
        for entry in entries
        if any(
            _same_job(known_id, wanted)
            for known_id in known_jobs(entry.path, read_json(entry.path / "run.json"))
        )
    )


def _same_job(known: str, wanted: set[str]) -> bool:
    return known in wanted or (known != "" and re.split(r"[_+]", known)[0] in wanted)


def _by_name(reference: str, entries: list[_Entry]) -> Run:
    safe = safe_name(reference)
    exact = [e for e in entries if reference in (e.name, e.path.name) or safe == e.name]
    if run := _newest(exact):
        return run
    alike = [e for e in entries if e.name.startswith(reference) or e.path.name.startswith(safe)]
    there = [entry for entry in alike if is_there(entry.path)]
    names = sorted({entry.name for entry in there})
    if len(names) > 1:
        raise RunNotFoundError(
            f"'{reference}' may be one of {len(names)} runs: {_some(names)}.\n"
            f"Name one: allranks logs {names[0]}"
        )
    if run := _newest(there):
        return run
    for entry in (*exact, *there):
        check_readable(entry.path)
    raise _no_name(reference, entries)


def _no_name(reference: str, entries: list[_Entry]) -> RunNotFoundError:
    names = sorted({entry.name for entry in entries if is_there(entry.path)})
    near = difflib.get_close_matches(reference, names, 3, 0.5)
    if near:
        hint = f"Did you mean {_some(near)}?"
    else:
        hint = f"There are: {_some(names)}." if names else f"There are none in {runs_root()}."
    return RunNotFoundError(f"No run is called '{reference}'. {hint}\nList the runs: allranks ps")


def _no_job(reference: str) -> RunNotFoundError:
    return RunNotFoundError(
        f"No run has the job id {reference}.\n"
        "List the runs: allranks ps, or name the folder: allranks logs path/to/run"
    )


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (" …" if len(names) > 5 else "")
