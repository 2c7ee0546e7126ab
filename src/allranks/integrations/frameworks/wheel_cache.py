"""The cache of built wheels, and locks against two builds at once."""

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
    """Return ``$XDG_CACHE_HOME/allranks``."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "allranks"


def wheels_folder() -> Path:
    """Return the folder of wheels and of the sources that they are built from."""
    return cache_folder() / "wheels"


def logs_folder() -> Path:
    """Return the folder of build logs."""
    return cache_folder() / "logs"


def find_wheel(key: str) -> Path | None:
    """Return the wheel with this key, if there is one."""
    found = sorted((wheels_folder() / key).glob("*.whl"))
    return found[0] if found else None


def store_wheel(key: str, wheel: Path) -> Path:
    """Put a wheel into the cache; a reader sees all of it or nothing."""
    return copy_to_cache(wheel, wheels_folder() / key / wheel.name)


def copy_to_cache(file: Path, place: Path) -> Path:
    """Copy a file into the cache, whole or not at all."""
    partial = place.with_name(f".{place.name}.{os.getpid()}")
    with report_unwritable(place.parent):
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copy(file, partial)
            partial.replace(place)
        finally:
            partial.unlink(missing_ok=True)
    return place


@contextmanager
def report_unwritable(folder: Path) -> Iterator[None]:
    """Report a folder that cannot be written in one sentence."""
    try:
        yield
    except OSError as error:
        raise AllranksError(
            f"{folder} cannot be written ({error.strerror}).\n"
            "Set XDG_CACHE_HOME to a folder that can."
        ) from None


def open_in_cache(path: Path, mode: str) -> IO[str]:
    """Open a file of the cache; its folder is created."""
    with report_unwritable(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open(mode, encoding="utf-8")


def file_name_part(text: str) -> str:
    """Return the text with only characters that fit into a file name."""
    return re.sub(r"[^\w.+]+", "_", text)


@contextmanager
def cache_lock(name: str, what: str) -> Iterator[None]:
    """Hold a lock; an error names the process that holds it already."""
    path = cache_folder() / "locks" / f"{name}.lock"
    with open_in_cache(path, "a+") as file:
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
