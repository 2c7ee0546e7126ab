"""What tests of the command share: how it is run, and how ``report.py``'s lines are read."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent

Allranks = Callable[..., "subprocess.CompletedProcess[str]"]


def runner(folder: Path, env: dict[str, str]) -> Allranks:
    def run(*words: str, timeout: float = 120, **changes: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "allranks", *words],
            cwd=folder,
            env={**env, **changes},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run


def reports(text: str) -> list[dict[str, object]]:
    """The lines that ``report.py`` printed, by rank."""
    found = [json.loads(line[line.index("{") :]) for line in text.splitlines() if '"sum"' in line]
    return sorted(found, key=lambda each: int(each["RANK"]))


def until(true: Callable[[], bool], seconds: float = 60) -> None:
    """Wait for something that must happen."""
    limit = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < limit, "it did not happen"
        time.sleep(0.2)
