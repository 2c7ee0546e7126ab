"""Wheels that were built here, kept by what they were built of; and locks, so that two do not meet."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from allranks.errors import AllranksError


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/allranks``."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "allranks"


def wheels_folder() -> Path:
    """Where wheels and the sources that they are built from lie."""
    return cache_folder() / "wheels"


def logs_folder() -> Path:
    """Where the logs of builds lie."""
    return cache_folder() / "logs"


def find_wheel(key: str) -> Path | None:
    """The wheel that was built of exactly this, if there is one."""
    found = sorted((wheels_folder() / key).glob("*.whl"))
    return found[0] if found else None


def keep_wheel(key: str, wheel: Path) -> Path:
    """Put a wheel into the cache; a reader sees all of it or nothing."""
    folder = wheels_folder() / key
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f".{wheel.name}.{os.getpid()}"
    try:
        shutil.copy(wheel, partial)
        partial.replace(folder / wheel.name)
    finally:
        partial.unlink(missing_ok=True)
    return folder / wheel.name


def plain(text: str) -> str:
    """Text as a part of a folder's name."""
    return re.sub(r"[^\w.+]+", "_", text)


@contextmanager
def locked(name: str, what: str) -> Iterator[None]:
    """Hold a lock, or say who holds it."""
    path = cache_folder() / "locks" / f"{name}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise AllranksError(
                f"Another process (pid {holder}) is {what}.\n"
                "Wait until it has ended, then type the same again."
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
