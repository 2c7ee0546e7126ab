"""What tests of the command share: how it is run, and how ``report.py``'s lines are read."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).parent.parent

T = TypeVar("T")
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


def until(
    condition: Callable[[], T], seconds: float = 60, show: Callable[[], object] | None = None
) -> T:
    """Wait until the condition holds and return its value; ``show`` gives what is there instead."""
    limit = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        if value := condition():
            return value
        now = time.monotonic()
        assert now < limit, f"not so within {seconds} s: {show() if show else value!r}"
        time.sleep(
            min(0.5, max(0.02, now - began))
        )  # a condition that runs a command is asked less often
