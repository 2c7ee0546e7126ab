"""The runs that the page shows, and their ids: a path never comes from the browser."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path

from allranks.errors import RunNotFoundError
from allranks.runs.atomic_files import is_there
from allranks.runs.run_folder import Run
from allranks.runs.run_lookup import find_run, list_runs

_DEPTH = 6  # folders below the one that was named
_AGE = 5.0  # seconds for which a list of folders holds; new runs appear after them
_LONG_AGO = datetime.min.replace(tzinfo=timezone.utc)


class Catalogue:
    """The named runs and those below named folders; without names all runs that allranks knows."""

    def __init__(self, references: Sequence[str] = (), root: Path | None = None) -> None:
        self._root = root
        self._folders: list[Path] = []
        self._named: list[Path] = []
        for reference in references:
            self._add(reference)
        self._everything = not references
        self._lock = threading.Lock()
        self._runs: dict[str, Run] = {}
        self._until = float("-inf")

    def runs(self) -> list[tuple[str, Run]]:
        """Return the id and the run of each, the newest first."""
        with self._lock:
            if (began := time.monotonic()) > self._until:
                self._runs = _by_id(self._find())
                took = time.monotonic() - began
                # Ten thousand folders on a slow disk: the page must not keep it busy.
                self._until = began + max(_AGE, 20 * took)
            return list(self._runs.items())

    def only_run(self) -> str:
        """Return the id of the only run it was made for; empty for several, or for all."""
        ids = [key for key, _ in self.runs()] if len(self._named) == 1 and not self._folders else []
        return ids[0] if len(ids) == 1 else ""

    def run(self, wanted: str) -> Run:
        """Return the run with that id, read again from its folder."""
        self.runs()
        if known := self._runs.get(wanted):
            return Run.open(known.path)
        raise RunNotFoundError(f"There is no run '{wanted}' in the list.")

    def select(self, wanted: Sequence[str]) -> list[tuple[str, Run]]:
        """Return those of the wanted runs that exist; raise RunNotFoundError without any."""
        self.runs()
        known = [(key, self._runs[key]) for key in wanted if key in self._runs]
        found = [(key, run) for key, one in known if (run := _open(one.path))]
        return found or [(key, self.run(key)) for key in wanted[:1]]

    def _add(self, reference: str) -> None:
        """Add a run, or a folder that stands for all runs below it, also future ones."""
        path = Path(reference).expanduser().absolute()
        if is_there(path) and path.is_dir() and not _inside_run(path):
            plain = os.sep in reference or reference.startswith(".")
            if plain or next(_below(path), None):
                self._folders.append(path)
                return
        self._named.append(find_run(reference, self._root).path)

    def _find(self) -> list[Run]:
        if self._everything:
            return list_runs(self._root)
        paths = [*self._named, *(path for folder in self._folders for path in _below(folder))]
        runs = [run for path in dict.fromkeys(paths) if (run := _open(path))]
        return sorted(runs, key=lambda run: run.created or _LONG_AGO, reverse=True)


def _by_id(runs: Sequence[Run]) -> dict[str, Run]:
    """Map ids to runs: the folder's name, with a hash of the path where names are the same."""
    names = Counter(run.id for run in runs)
    return {run.id + (_mark(run.path) if names[run.id] > 1 else ""): run for run in runs}


def _mark(path: Path) -> str:
    return f"~{hashlib.sha256(os.fsencode(path)).hexdigest()[:8]}"


def _inside_run(path: Path) -> bool:
    return any(is_there(folder / "run.json") for folder in (path, *path.parents[:4]))


def _open(path: Path) -> Run | None:
    try:
        return Run.open(path)
    except RunNotFoundError:
        return None


def _below(folder: Path, depth: int = _DEPTH) -> Iterator[Path]:
    """Yield run folders, without descending into them; unreadable folders are skipped."""
    try:
        with os.scandir(folder) as found:
            children = [item for item in found if _is_folder(item)]
    except OSError:
        return
    for item in children:
        path = Path(item.path)
        if is_there(path / "run.json"):
            yield path
        elif depth > 1:
            yield from _below(path, depth - 1)


def _is_folder(item: os.DirEntry[str]) -> bool:
    return not item.name.startswith(".") and item.is_dir(follow_symlinks=False)
