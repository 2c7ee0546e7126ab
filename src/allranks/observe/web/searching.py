"""A search by regular expression, in a process of its own.

Some expressions take longer than anyone waits, no look at them tells which, and nothing but its end
stops one that is on its way: here that ends this process, while the server goes on.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import allranks
from allranks.errors import AllranksError, UsageError
from allranks.observe.web.log_pages import Cursor, next_page
from allranks.observe.web.log_query import LogQuery
from allranks.runs.run import Run

_LIMIT = 5.0  # seconds; a page of lines that can be searched at all comes long before


def search(run: Run, query: LogQuery, limit: int, after: Cursor | None = None) -> dict[str, Any]:
    """As next_page, and given up when it takes too long."""
    spans = None if query.ranks is None else [(one.start, one.stop) for one in query.ranks]
    asked = {
        "run": str(run.path),
        "query": asdict(query) | {"ranks": spans},
        "limit": limit,
        "after": str(after) if after else None,
    }
    try:
        done = subprocess.run(
            [sys.executable, "-m", "allranks.observe.web.searching"],
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            timeout=_LIMIT,
            check=True,
            cwd=Path(allranks.__file__).parents[1],  # where -m finds this very package
        )
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"'{query.text}' takes longer than anyone waits, over these lines.\n"
            "Write it without a repetition inside another: a+ in place of (a+)+."
        ) from None
    except subprocess.CalledProcessError as error:
        raise UsageError(f"The search ended by itself (exit {error.returncode}).") from None
    answer: dict[str, Any] = json.loads(done.stdout)
    if "error" in answer:
        raise UsageError(answer["error"])
    return answer


def main() -> None:
    """One question on stdin, its answer on stdout."""
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
