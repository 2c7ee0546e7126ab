"""Write the files of the attempt folder: logs, records of started and failed ranks.

Losing a file must never end a training run: when the disk is full or the folder is gone, the agent
reports it once and continues without files.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def stamp(seconds: float) -> str:
    """Return a time as UTC in ISO 8601, with microseconds."""
    whole = int(seconds)
    clock = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole))
    return f"{clock}.{int((seconds - whole) * 1e6):06d}Z"


class RankLog:
    """The log of one rank: append-only, one writer, one ``write`` per block of lines."""

    def __init__(self, path: Path | None, report: Callable[[str], None]) -> None:
        self.path = path
        self._report = report
        self._fd = -1
        if path:
            self._try(lambda: self._open(path))

    def append(self, error: bool, block: bytes, now: float) -> None:
        """Append lines that were read at ``now``."""
        if self._fd >= 0:
            head = f"{stamp(now)} {'e' if error else 'o'} ".encode()
            text = head + block[:-1].replace(b"\n", b"\n" + head) + b"\n"
            self._try(lambda: _write_all(self._fd, text))

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
        except OSError as error:
            self._report(f"allranks: cannot write the log {self.path}: {error.strerror}")
            self.close()


def _write_all(fd: int, text: bytes) -> None:
    view = memoryview(text)
    while view:
        view = view[os.write(fd, view) :]


class AttemptFiles:
    """The attempt folder; without one (``ALLRANKS_ATTEMPT_DIR`` unset) nothing is written."""

    def __init__(self, folder: str | Path | None, report: Callable[[str], None]) -> None:
        self.folder = Path(folder) if folder else None
        self._report = report

    def log(self, rank: int) -> RankLog:
        """Open the log file of a rank."""
        return RankLog(self.path("ranks", rank, "log"), self._report)

    def write_start(self, rank: int, facts: Mapping[str, Any]) -> None:
        """Record that a rank started."""
        self._json(self.path("ranks", rank, "json"), facts)

    def write_failure(self, rank: int, facts: Mapping[str, Any]) -> None:
        """Record that a rank failed by itself."""
        self._json(self.path("failures", rank, "json"), facts)

    @property
    def failures(self) -> Path | None:
        """The folder with the failures of all ranks."""
        return self.folder / "failures" if self.folder else None

    def write_environment(self, environment: Mapping[str, str]) -> None:
        """Record the environment of rank 0, without the secrets."""
        if self.folder:
            from allranks.core.redaction import redact_environment

            lines = [f"{name}={value}" for name, value in redact_environment(environment).items()]
            self._replace(self.folder / "environment.txt", "\n".join(lines) + "\n")

    def path(self, part: str, rank: int, suffix: str) -> Path | None:
        """Return the path of a rank's file."""
        return self.folder / part / f"rank-{rank:05d}.{suffix}" if self.folder else None

    def _json(self, path: Path | None, facts: Mapping[str, Any]) -> None:
        if path:
            self._replace(path, json.dumps(facts, indent=1) + "\n")

    def _replace(self, path: Path, text: str) -> None:
        # Readers poll these files over a network file system: they must never see half of one.
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            draft = path.with_name(f".{path.name}.{os.getpid()}")
            draft.write_text(text, encoding="utf-8", errors="replace")
            draft.replace(path)
        except OSError as error:
            self._report(f"allranks: cannot write {path}: {error.strerror}")
