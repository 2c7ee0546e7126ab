"""The first error of an attempt, for people.

When one rank of many fails, the others fail too, a little later and with other messages: broken
connections, time-outs. The one that failed first is the one to read.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from allranks.runs.exit_reasons import ending

Record = Mapping[str, Any]
_NAMED = 8


def read_failures(attempt: Path) -> list[Record]:
    """The failure records of an attempt, the earliest first."""
    return earliest(
        [r for p in sorted((attempt / "failures").glob("rank-*.json")) if (r := _json(p))]
    )


def earliest(records: Sequence[Record]) -> list[Record]:
    """The records in the order in which the ranks failed."""
    return sorted(records, key=lambda record: (record["time"], record["rank"]))


def summary(attempt: Path) -> str:
    """The block to print; empty when nothing failed, or the ranks saved and left on purpose."""
    failures = read_failures(attempt)
    if not failures or (attempt / "interrupted").exists():
        return ""
    name = f"rank-{failures[0]['rank']:05d}"
    started = (_json(attempt / "ranks" / f"{name}.json") or {}).get("start")
    log = attempt / "ranks" / f"{name}.log"
    return describe_first(failures, started, log if log.exists() else None)


def describe_first(failures: Sequence[Record], started: str | None, log: Path | None) -> str:
    """The first failure in full, and a word on the others."""
    first, *others = failures
    lines = [f"first error: {headline(first, started)}"]
    lines += str(first["traceback"]).splitlines()
    if log:
        lines.append(f"log: {log}")
    if others:
        lines.append(f"also failed: {_ranks([record['rank'] for record in others])}")
    return "\n".join(lines)


def headline(record: Record, started: str | None) -> str:
    """``rank 3 (local rank 1) on node2, exit code 1, 12 s after start``."""
    text = f"rank {record['rank']} (local rank {record['local_rank']}) on {record['host']}, "
    text += ending(int(record["exit_code"]), record["signal"])
    if started:
        seconds = (_time(str(record["time"])) - _time(started)).total_seconds()
        text += f", {max(seconds, 0):.0f} s after start"
    return text


def _ranks(ranks: Sequence[int]) -> str:
    named = ", ".join(map(str, sorted(ranks)[:_NAMED]))
    more = f" and {len(ranks) - _NAMED} more" if len(ranks) > _NAMED else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {named}{more}"


def _json(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _time(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
