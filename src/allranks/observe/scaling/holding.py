"""One process at a time changes a study: two would each write what the other does not know."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from allranks.core.shell import quote
from allranks.errors import JobError

FILE = "lock"
"""In the study's folder; it tells who holds it."""


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold a study while it is changed; JobError when another process does.

    A record lock: unlike that of flock, ranks that are forked meanwhile do not inherit it, and it ends
    with this process whatever becomes of them.
    """
    try:
        file = (folder / FILE).open("a+", encoding="utf-8")
    except OSError as error:
        raise JobError(f"{folder} cannot be written: {error.strerror}.") from None
    with file:
        _lock(file, folder)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {os.uname().nodename}")
        file.flush()
        yield


def _lock(file: IO[str], folder: Path) -> None:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # held: systems differ in what they say
        file.seek(0)
        who = file.read().strip() or "another process"
        raise JobError(
            f"{folder.name} is watched already, by {who}.\n"
            f"Look at it: allranks scale --show {quote(str(folder))}; or end that process first."
        ) from None
    except OSError:
        pass  # a file system without locks: go on, as there is nothing better
