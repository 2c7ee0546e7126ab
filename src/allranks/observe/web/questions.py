"""What an address asks for. Everything in it may be anyone's text: what is no number or rank is told."""

from __future__ import annotations

import re

from starlette.requests import Request

from allranks.errors import UsageError
from allranks.observe.web.log_query import LogQuery

_RANKS = re.compile(r"[0-9]{1,9}(-[0-9]{1,9})?(,[0-9]{1,9}(-[0-9]{1,9})?)*")


def query_of(request: Request) -> LogQuery:
    """Which lines of the logs."""
    given = request.query_params
    ranks = given.get("ranks", "")
    if ranks and not _RANKS.fullmatch(ranks.replace(" ", "")):
        raise UsageError(f"'{ranks[:100]}' is not a list of ranks. Write 0, 0,3 or 4-7.")
    return LogQuery(
        text=given.get("q", ""),
        regex=given.get("regex") == "1",
        case=given.get("case") == "1",
        ranks=_ranks(ranks.replace(" ", "")) if ranks else None,
        attempt=number_of(request, "attempt", 0, 1 << 30) or None,
        task=task_of(request) or "",
        errors=given.get("errors") == "1",
        stream=given.get("stream", ""),
    )


def _ranks(text: str) -> list[range]:
    """``0,4-7`` as spans, as ``logs --rank`` takes them."""
    parts = (part.partition("-") for part in text.split(","))
    return [range(int(first), int(last or first) + 1) for first, _, last in parts]


def number_of(request: Request, name: str, usual: int, most: int) -> int:
    """A number by its name, at most so much; the usual one where none is given."""
    text = request.query_params.get(name, "")
    if not re.fullmatch(r"[0-9]{0,18}", text):
        raise UsageError(f"{name}={text[:100]} is not a number.")
    return min(int(text), most) if text else usual


def task_of(request: Request) -> str | None:
    """Of a job array. It becomes a part of a path, so it is a number or nothing."""
    text = request.query_params.get("task", "")
    if not re.fullmatch(r"[0-9]{0,9}", text):
        raise UsageError(f"task={text[:100]} is not the number of an array's task.")
    return text or None


def weight_of(request: Request) -> float:
    """Of the smoothing: from 0, none, to below 1."""
    try:
        return min(max(float(request.query_params.get("smooth", "0")), 0.0), 0.999)
    except ValueError:
        return 0.0
