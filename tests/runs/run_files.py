"""Files below an attempt, as the agent writes them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def stamp(second: float) -> str:
    """A time of day as the agent writes it."""
    return f"2026-11-15T10:{int(second // 60):02}:{second % 60:09.6f}Z"


def write_log(
    folder: Path, rank: int, lines: list[tuple[float, str, str]], end: str = "\n"
) -> None:
    (folder / "ranks").mkdir(exist_ok=True)
    text = "\n".join(f"{stamp(when)} {stream} {text}" for when, stream, text in lines)
    with open(folder / "ranks" / f"rank-{rank:05}.log", "a") as file:
        file.write(text + end)


def write_failure(folder: Path, rank: int, second: float, **more: object) -> None:
    (folder / "failures").mkdir(exist_ok=True)
    record = {"rank": rank, "host": f"node{rank}", "exit_code": 1, "time": stamp(second)} | more
    (folder / "failures" / f"rank-{rank:05}.json").write_text(json.dumps(record))


@contextmanager
def as_nobody() -> Iterator[None]:
    """As a user whom permissions bind, where the tests are run by root."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
