"""Writing that is on the disk when it returns: what a crash of the machine must not undo."""

from __future__ import annotations

import errno
import os
import re
import shutil
import uuid
from pathlib import Path

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
