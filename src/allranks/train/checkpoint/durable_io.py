"""Write files and folders so that they survive a crash; read with retries from unreliable file systems."""

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
_T = TypeVar("_T")
RETRY_PAUSES = (0.2, 1.0, 3.0)
"""Seconds before each retry: failing-over servers and stale handles recover in that time."""
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP)


def write_durable(path: Path, text: str) -> None:
    """Write a text file atomically and flush it to disk."""
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
    """Flush the entries of a folder to disk: fsync of a file does not do that for its name."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems do not support it
            raise
    finally:
        os.close(handle)


def replace_link(link: Path, target: str) -> None:
    """Replace a symlink atomically."""
    temporary = link.with_name(f".{link.name}.{uuid.uuid4().hex[:8]}")
    temporary.symlink_to(target)
    try:
        temporary.replace(link)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def remove_leftover(path: Path) -> None:
    """Remove a temporary file or folder of this module that a killed process left behind."""
    if path.name.startswith(".gone-"):
        shutil.rmtree(path, ignore_errors=True)
    elif _TEMPORARY.match(path.name) and (path.is_symlink() or path.is_file()):
        path.unlink(missing_ok=True)


def remove_folder(path: Path) -> None:
    """Hide a folder by one rename, then delete its files: readers never see half of it.

    What cannot be deleted (NFS keeps files that are open elsewhere) stays hidden until the next start.
    """
    gone = path.with_name(f".gone-{path.name.lstrip('.')}-{uuid.uuid4().hex[:8]}")
    try:
        path.rename(gone)
    except FileNotFoundError:
        return
    shutil.rmtree(gone, ignore_errors=True)


class UnreadableCheckpoint(AllranksError, OSError):
    """A checkpoint that exists but cannot be read at the moment; it may be valid."""


class ReadProblem(str):
    """A problem of the file system: the checkpoint itself may be valid."""

    __slots__ = ()


def read_with_retries(read: Callable[[], _T]) -> _T:
    """Return the result of ``read``, retried a few times on an OSError other than a missing file."""
    for pause in RETRY_PAUSES:
        try:
            return read()
        except OSError as error:
            if is_missing(error):
                raise
            time.sleep(pause)
    return read()


def is_missing(error: OSError) -> bool:
    """Return whether the error means that there is no such file, not that it cannot be read."""
    return error.errno in _NOT_THERE
