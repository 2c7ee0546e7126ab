"""What a run wrote down of itself for whoever looks at it: its plan, the environment of its rank 0."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from allranks.core.units import parse_time
from allranks.errors import UsageError
from allranks.runs.atomic_files import open_file

_MOST = 1 << 20
"""Bytes of an environment that are read; few have a hundredth of that."""


def plan_rows(plan: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(name, value, origin) of each value of a plan, as ``plan.json`` has them."""
    rows = plan.get("values")
    return [
        (str(row.get("name")), str(row.get("value")), str(row.get("origin") or ""))
        for row in (rows if isinstance(rows, list) else [])
        if isinstance(row, dict)
    ]


def plan_values(plan: Mapping[str, Any]) -> dict[str, str]:
    """The values of a plan by name."""
    return {name: value for name, value, _ in plan_rows(plan)}


def plan_time(plan: Mapping[str, Any]) -> int | None:
    """The time limit that was asked for, in seconds."""
    text = plan_values(plan).get("time")
    try:
        return parse_time(text) if text else None
    except UsageError:
        return None


def environment(attempt: Path) -> dict[str, str]:
    """The variables of rank 0, secrets redacted; empty when they were not written.

    A link is not followed: it may lead out of the folder of another user to a file of the reader's.
    """
    path = attempt / "environment.txt"
    try:
        if path.is_symlink():
            return {}
        with open(open_file(path), "rb") as file:
            lines = file.read(_MOST).decode("utf-8", "replace").splitlines()
    except OSError:
        return {}
    pairs = (line.partition("=") for line in lines)
    return {name: value for name, equals, value in pairs if equals}
