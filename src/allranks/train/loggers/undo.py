"""One curve over several attempts: lines of steps that were lost leave the file before it goes on."""

from __future__ import annotations

from pathlib import Path

from allranks.runs.atomic_files import write_bytes
from allranks.train.loggers.base import RunInfo

FILES = {"jsonl": "metrics.jsonl", "csv": "metrics.csv"}


def lines_there(folder: Path) -> dict[str, int]:
    """By logger, how many lines its file in the run folder has."""
    paths = {name: folder / file for name, file in FILES.items()}
    return {name: count_lines(path) for name, path in paths.items()}


def count_lines(path: Path) -> int:
    """Lines of a file, a torn last one included; none when there is no file."""
    return len(path.read_bytes().splitlines()) if path.exists() else 0


def undo(path: Path, name: str, run: RunInfo) -> None:
    """Move what an attempt wrote after the step that the run goes on from to ``undone-…``.

    First the copy, then one rename: a kill in between leaves lines twice, never none.
    """
    if run.logged is None or name not in run.logged or not path.exists():
        return
    lines = path.read_bytes().splitlines(keepends=True)
    kept, lost = lines[: run.logged[name]], lines[run.logged[name] :]
    if lost:
        with open((run.undone or run.folder) / f"undone-{path.name}", "ab") as file:
            file.writelines(lost)
        write_bytes(path, b"".join(kept))
