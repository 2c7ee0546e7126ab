"""The report of a run, for the page: made anew by a process of its own, and never written to the folder.

It reads all of a run and asks Slurm's accounting, so it may take long; here that holds up no one else.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import threading
from pathlib import Path

from starlette.responses import HTMLResponse, PlainTextResponse, Response

import allranks
from allranks.runs.run import Run

_LIMIT = 60.0  # seconds, in which the longest runs are read several times over
_AT_ONCE = threading.BoundedSemaphore(2)
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The report is one file: its styles are in it, and nothing else is to be loaded or run."""


def report(run: Run, task: str | None) -> Response:
    """The page of a run, or of a task of its array; a sentence where there can be none."""
    if not _AT_ONCE.acquire(blocking=False):
        return PlainTextResponse("Other reports are being made. Try again in a moment.\n", 503)
    try:
        done = _made(run, task)
    except subprocess.TimeoutExpired:
        command = shlex.join(["allranks", *_words(run, task)])
        text = f"It takes longer than {_LIMIT:.0f} s. In a terminal: {command}\n"
        return PlainTextResponse(text, 504)
    finally:
        _AT_ONCE.release()
    if done.returncode:
        return PlainTextResponse(done.stderr or "The report could not be made.\n", 500)
    return HTMLResponse(done.stdout, headers={"Content-Security-Policy": _POLICY})


def _words(run: Run, task: str | None) -> list[str]:
    return ["report", str(run.path), *(["--task", task] if task else [])]


def _made(run: Run, task: str | None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "allranks", *_words(run, task), "--output", "-"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        env=os.environ | {"PYTHONUTF8": "1"},
        timeout=_LIMIT,
        check=False,
        cwd=Path(allranks.__file__).parents[1],  # where -m finds this very package
    )
