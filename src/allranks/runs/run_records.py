"""Records of a run for views and reports: its plan, the environment of rank 0."""

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
    """Return (name, value, origin) of each value of a plan, as ``plan.json`` has them."""
    rows = plan.get("values")
    return [
        (str(row.get("name")), str(row.get("value")), str(row.get("origin") or ""))
        for row in (rows if isinstance(rows, list) else [])
        if isinstance(row, dict)
    ]


def plan_values(plan: Mapping[str, Any]) -> dict[str, str]:
    """Return the values of a plan by name."""
    return {name: value for name, value, _ in plan_rows(plan)}


def plan_time(plan: Mapping[str, Any]) -> int | None:
    """Return the requested time limit in seconds."""
    text = plan_values(plan).get("time")
    try:
        return parse_time(text) if text else None
    except UsageError:
        return None


def environment(attempt: Path) -> dict[str, str]:
    """Return the variables of rank 0, secrets redacted; empty when they were not recorded.

    A link is not followed: in another user's folder it may lead to a file of the reader's own.
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
