"""Wheels that were built here, kept by what they were built of; and locks, so that two do not meet."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

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
    return keep(wheel, wheels_folder() / key / wheel.name)


def keep(file: Path, place: Path) -> Path:
    """Copy a file into the cache, whole or not at all."""
    partial = place.with_name(f".{place.name}.{os.getpid()}")
    with writing(place.parent):
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copy(file, partial)
            partial.replace(place)
        finally:
            partial.unlink(missing_ok=True)
    return place


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """A cache that cannot be written is told in a sentence."""
    try:
        yield
    except OSError as error:
        raise AllranksError(
            f"{folder} cannot be written ({error.strerror}).\n"
            "Set XDG_CACHE_HOME to a folder that can."
        ) from None


def opened(path: Path, mode: str) -> IO[str]:
    """Open a file of the cache, its folder made where it is not there."""
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open(mode, encoding="utf-8")


def plain(text: str) -> str:
    """Text as a part of a folder's name."""
    return re.sub(r"[^\w.+]+", "_", text)


@contextmanager
def locked(name: str, what: str) -> Iterator[None]:
    """Hold a lock, or say who holds it."""
    path = cache_folder() / "locks" / f"{name}.lock"
    with opened(path, "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise AllranksError(
                f"Another process (pid {holder}) is {what}.\n"
                "Wait until it has ended, then type the same again."
            ) from None
        except OSError as error:  # some network file systems have no locks
            raise AllranksError(
                f"{path} cannot be locked ({error.strerror}).\n"
                "Set XDG_CACHE_HOME to a folder on a local disk."
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
