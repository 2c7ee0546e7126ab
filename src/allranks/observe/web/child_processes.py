"""Requests that run in a child process: a search by regular expression, and the report of a run.

Some expressions take too long, and a match cannot be interrupted: only the end of its process stops it.
A report reads all of a run and queries Slurm's accounting; here that delays no other request.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

import allranks
from allranks.errors import AllranksError, UsageError
from allranks.observe.web.log_files import LogQuery
from allranks.observe.web.log_pages import Cursor, next_page
from allranks.runs.run_folder import Run

SEARCH_SECONDS = 5.0  # seconds; a page of lines that can be searched at all comes long before


def search_logs(
    run: Run, query: LogQuery, limit: int, after: Cursor | None = None
) -> dict[str, Any]:
    """Search as next_page does, and give up when it takes too long."""
    spans = None if query.ranks is None else [(one.start, one.stop) for one in query.ranks]
    asked = {
        "run": str(run.path),
        "query": asdict(query) | {"ranks": spans},
        "limit": limit,
        "after": str(after) if after else None,
    }
    try:
        done = subprocess.run(
            [sys.executable, "-m", "allranks.observe.web.child_processes"],
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            timeout=SEARCH_SECONDS,
            check=True,
            cwd=Path(allranks.__file__).parents[1],  # where -m finds this very package
        )
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"'{query.text}' takes too long over these lines.\n"
            "Write it without nested repetitions: a+ in place of (a+)+."
        ) from None
    except subprocess.CalledProcessError as error:
        raise UsageError(f"The search failed (exit {error.returncode}).") from None
    answer: dict[str, Any] = json.loads(done.stdout)
    if "error" in answer:
        raise UsageError(answer["error"])
    return answer


def main() -> None:
    """Answer one request from stdin on stdout."""
    asked = json.load(sys.stdin)
    about = asked["query"]
    if about["ranks"] is not None:
        about["ranks"] = [range(first, end) for first, end in about["ranks"]]
    try:
        after = Cursor.read(asked["after"]) if asked["after"] else None
        answer = next_page(Run.open(asked["run"]), LogQuery(**about), asked["limit"], after)
    except AllranksError as error:
        answer = {"error": str(error)}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()


REPORT_SECONDS = 60.0  # seconds, in which the longest runs are read several times over
_AT_ONCE = threading.BoundedSemaphore(2)


def make_report(run: Run, task: str | None) -> tuple[int, str]:
    """Return an HTTP status and the page of a run, or of a task of its array; or why there is none."""
    if not _AT_ONCE.acquire(blocking=False):
        return 503, "Other reports are being made. Try again in a moment.\n"
    try:
        done = _run_report(run, task)
    except subprocess.TimeoutExpired:
        command = shlex.join(["allranks", *_words(run, task)])
        return 504, f"It takes longer than {REPORT_SECONDS:.0f} s. In a terminal: {command}\n"
    finally:
        _AT_ONCE.release()
    if done.returncode:
        return 500, done.stderr or "The report could not be made.\n"
    return 200, done.stdout


def _words(run: Run, task: str | None) -> list[str]:
    return ["report", str(run.path), *(["--task", task] if task else [])]


def _run_report(run: Run, task: str | None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "allranks", *_words(run, task), "--output", "-"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        env=os.environ | {"PYTHONUTF8": "1"},
        timeout=REPORT_SECONDS,
        check=False,
        cwd=Path(allranks.__file__).parents[1],  # where -m finds this very package
    )
