"""Writing that is on the disk when it returns: what a crash of the machine must not undo."""

from __future__ import annotations

import errno
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from allranks.errors import AllranksError

_TEMPORARY = re.compile(r"^\..+\.[0-9a-f]{8}$")


def write_durable(path: Path, text: str) -> None:
    """Put the text there in one step, and on the disk."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        with open(temporary, "wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable: fsync of a file does not do that for its name."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems know no such thing
            raise
    finally:
        os.close(handle)


def move_link(link: Path, target: str) -> None:
    """Point a symlink elsewhere in one step: there is no moment without it."""
    temporary = link.with_name(f".{link.name}.{uuid.uuid4().hex[:8]}")
    temporary.symlink_to(target)
    try:
        temporary.replace(link)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def clear_away(path: Path) -> None:
    """Remove one thing that a killed process may have left in the middle of one of these."""
    if path.name.startswith(".gone-"):
        shutil.rmtree(path, ignore_errors=True)
    elif _TEMPORARY.match(path.name) and (path.is_symlink() or path.is_file()):
        path.unlink(missing_ok=True)


def remove_folder(path: Path) -> None:
    """First out of sight by one rename, then file by file: nobody meets half of it.

    What cannot be deleted (NFS keeps files that are open elsewhere) stays hidden and is cleared by
    the next start.
    """
    gone = path.with_name(f".gone-{path.name.lstrip('.')}-{uuid.uuid4().hex[:8]}")
    try:
        path.rename(gone)
    except FileNotFoundError:
        return
    shutil.rmtree(gone, ignore_errors=True)


_T = TypeVar("_T")
RETRY_PAUSES = (0.2, 1.0, 3.0)
"""Seconds before each further try: servers that fail over and handles that are stale come back so."""
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP)


class UnreadableCheckpoint(AllranksError, OSError):
    """Something that is there and cannot be read at the moment: whether it is sound nobody knows."""


class ReadProblem(str):
    """A problem that says nothing of the checkpoint itself."""

    __slots__ = ()


def read_with_retries(read: Callable[[], _T]) -> _T:
    """What ``read`` gives; the file system is asked a few times before its OSError counts."""
    for pause in RETRY_PAUSES:
        try:
            return read()
        except OSError as error:
            if is_missing(error):
                raise
            time.sleep(pause)
    return read()


def is_missing(error: OSError) -> bool:
    """Whether it says that there is no such file, and not just that it cannot be read."""
    return error.errno in _NOT_THERE
