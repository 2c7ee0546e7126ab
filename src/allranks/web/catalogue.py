"""Which runs the page shows, and the ids by which it names them: a path never comes from the browser."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path

from allranks.errors import RunNotFoundError
from allranks.runs.folder import Run
from allranks.runs.index import find_run, list_runs

_DEPTH = 6  # folders below the one that was named
_AGE = 5.0  # seconds for which a list of folders holds; new runs appear after them
_LONG_AGO = datetime.min.replace(tzinfo=timezone.utc)


class Catalogue:
    """The runs named, those below the folders named, or when nothing is: all that allranks knows."""

    def __init__(self, references: Sequence[str] = (), root: Path | None = None) -> None:
        self._root = root
        self._folders: list[Path] = []
        self._named: list[Path] = []
        for reference in references:
            self._add(reference)
        self._everything = not references
        self._lock = threading.Lock()
        self._ids: dict[Path, str] = {}
        self._runs: list[Run] = []
        self._until = float("-inf")

    def runs(self) -> list[tuple[str, Run]]:
        """The id and the run of each, the newest first."""
        with self._lock:
            if (began := time.monotonic()) > self._until:
                self._runs = self._find()
                took = time.monotonic() - began
                # Ten thousand folders on a slow disk: the page must not keep it busy.
                self._until = began + max(_AGE, 20 * took)
            return [(self._id(run), run) for run in self._runs]

    def run(self, wanted: str) -> Run:
        """The run with that id, as its folder says now."""
        for known, run in self.runs():
            if known == wanted:
                return Run.open(run.path)
        raise RunNotFoundError(f"There is no run '{wanted}' in the list.")

    def _add(self, reference: str) -> None:
        """A folder that is no run stands for all runs below it, also those that come later."""
        path = Path(reference).expanduser().absolute()
        if path.is_dir() and not _inside_run(path):
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

    def _id(self, run: Run) -> str:
        """The folder's name; of two that are alike the one seen later gets a mark of its place."""
        if run.path not in self._ids:
            taken = run.id in self._ids.values()
            mark = f"~{hashlib.sha256(os.fsencode(run.path)).hexdigest()[:6]}" if taken else ""
            self._ids[run.path] = run.id + mark
        return self._ids[run.path]


def _inside_run(path: Path) -> bool:
    return any((folder / "run.json").exists() for folder in (path, *path.parents[:4]))


def _open(path: Path) -> Run | None:
    try:
        return Run.open(path)
    except RunNotFoundError:
        return None


def _below(folder: Path, depth: int = _DEPTH) -> Iterator[Path]:
    """Run folders, not looked into any further; what may not be read is passed over."""
    try:
        with os.scandir(folder) as found:
            children = [item for item in found if _is_folder(item)]
    except OSError:
        return
    for item in children:
        path = Path(item.path)
        if (path / "run.json").exists():
            yield path
        elif depth > 1:
            yield from _below(path, depth - 1)


def _is_folder(item: os.DirEntry[str]) -> bool:
    return not item.name.startswith(".") and item.is_dir(follow_symlinks=False)
