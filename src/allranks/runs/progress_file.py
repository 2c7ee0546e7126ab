"""The progress of one attempt: ``progress.json`` and ``interrupted`` in its folder, written by rank 0.

The job script, ``allranks ps`` and the next attempt read them: whether the training made progress, what
was lost, and whether the ranks exited on purpose.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from allranks.runs.atomic_files import integer, read_json, real, words, write_json, write_text

INTERRUPTED_FILE = "interrupted"
"""The file by which a job script knows that the ranks saved and exited: resume in another attempt."""
_KINDS: dict[Any, Callable[[object], Any]] = {
    "int": integer, "int | None": integer, "float | None": real, "str": words,
}  # fmt: skip
"""How the value of a field is read, by the field's type."""


@dataclass(frozen=True)
class AttemptProgress:
    """What ``progress.json`` holds; times are seconds since 1970."""

    first_step: int = 0
    """Where the attempt began: not 0 after a resumption."""
    step: int = 0
    began: float | None = None
    """When its first step began."""
    updated: float | None = None
    saved_step: int | None = None
    """The newest published checkpoint."""
    saved_time: float | None = None
    save_seconds: float | None = None
    """The longest that a save took."""
    total_steps: int | None = None
    outcome: str = "running"
    """"running", "finished", "interrupted" or "failed"."""
    reason: str = ""
    fit: int = 1
    """Which training of the script it is at; the steps here are of this one."""

    @classmethod
    def read(cls, attempt: Path) -> AttemptProgress | None:
        """Read the progress from an attempt's folder, as far as it makes sense; None when there is none."""
        found = read_json(attempt / "progress.json")
        values = {each.name: _KINDS[each.type](found.get(each.name)) for each in fields(cls)}
        known = {name: value for name, value in values.items() if value is not None}
        return cls(**known) if known else None

    def write(self, attempt: Path) -> None:
        """Write the progress into the attempt's folder, atomically."""
        content: dict[str, Any] = asdict(self) | {"updated": time.time()}
        write_json(attempt / "progress.json", content)


def current_attempt() -> Path | None:
    """Return the attempt that allranks started this process in; None when it was started by hand."""
    given = os.environ.get("ALLRANKS_ATTEMPT_DIR")
    return Path(given) if given else None


def record_interruption(attempt: Path, sentence: str) -> None:
    """Record for the job script that the ranks exited on purpose."""
    write_text(attempt / INTERRUPTED_FILE, sentence.strip() + "\n")
