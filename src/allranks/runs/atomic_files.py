"""Small files that survive a kill at any moment: written whole or not at all, read tolerantly."""

from __future__ import annotations

import errno
import json
import os
import stat
import tempfile
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str) -> None:
    """Write a file atomically: a reader sees the old content or the new one, never a part."""
    write_bytes(path, text.encode("utf-8", "surrogateescape"))


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file as write_text does. The temporary file is beside it: a rename cannot cross file systems."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), 0o666 & ~_umask())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def put_text(path: Path, text: str) -> None:
    """Write a file that a user named: as write_text, but links are followed and pipes and devices written into."""
    try:
        regular = stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        regular = True  # it is to be one
    if regular:
        write_text(Path(os.path.realpath(path)), text)
    else:
        path.write_bytes(text.encode("utf-8", "surrogateescape"))


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object, indented: people read these files too."""
    write_text(path, json.dumps(content, indent=2, default=str) + "\n")


def is_there(path: Path) -> bool:
    """Return whether a file or folder exists; one without permission to read does not."""
    try:
        path.stat()
    except ValueError:
        return False
    except OSError as error:
        if error.errno in (errno.EIO, errno.ESTALE):  # a file system that is not mounted just now
            raise
        return False
    return True


def open_file(path: Path) -> int:
    """Open a regular file for reading; anything else is refused, as opening a pipe may block for ever."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "It is no regular file", str(path))
    return handle


def read_bytes(path: Path) -> bytes:
    """Return the content of a regular file; OSError otherwise."""
    with open(open_file(path), "rb") as file:
        return file.read()


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; empty when it is missing, half-written or not an object."""
    try:
        content = json.loads(read_bytes(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def now() -> str:
    """Return the time as run folders have it: UTC, ISO 8601, microseconds, ``Z``."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_stamp(text: object) -> datetime | None:
    """Parse a time stamp, or return None; without a zone it is UTC. Python 3.10 does not parse a ``Z``."""
    if not isinstance(text, str):
        return None
    try:
        found = datetime.fromisoformat(text.removesuffix("Z"))
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=timezone.utc)


def integer(value: object) -> int | None:
    """Return the integer in a JSON value, or None; also None when it has more than 64 bits."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        return None
    try:
        found = int(value)
    except ValueError:
        return None
    return found if abs(found) < 1 << 63 else None


def real(value: object) -> float | None:
    """Return the finite number in a JSON value, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) < 1 << 63 else None


def words(value: object) -> str | None:
    """Return the string in a JSON value, or None."""
    return value if isinstance(value, str) else None


def strings(value: object) -> list[str]:
    """Return the list of strings in a JSON value; empty when it is not a list."""
    return [str(item) for item in value] if isinstance(value, list) else []


def _umask() -> int:
    """Return the umask from /proc: the system call sets it too, which affects other threads."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    except (OSError, ValueError, IndexError):
        pass
    return 0o022
