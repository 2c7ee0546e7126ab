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
    """Put the text there in one step: a reader sees the old file or the new one, never a part."""
    write_bytes(path, text.encode("utf-8", "surrogateescape"))


def write_bytes(path: Path, data: bytes) -> None:
    """As write_text. The temporary file lies beside it: a rename must not cross file systems."""
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
    """Where a user wants it: as write_text, but a link is followed, and a pipe or device written into."""
    try:
        regular = stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        regular = True  # it is to be one
    if regular:
        write_text(Path(os.path.realpath(path)), text)
    else:
        path.write_bytes(text.encode("utf-8", "surrogateescape"))


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """A JSON object, indented: people read these files too."""
    write_text(path, json.dumps(content, indent=2, default=str) + "\n")


def is_there(path: Path) -> bool:
    """Whether there is such a file or folder; what others keep to themselves is not there."""
    try:
        path.stat()
    except ValueError:
        return False
    except OSError as error:
        if error.errno in (errno.EIO, errno.ESTALE):  # a file system that is away tells nothing
            raise
        return False
    return True


def open_file(path: Path) -> int:
    """Open for reading. What is no regular file is refused: a pipe would be waited for for ever."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "It is no regular file", str(path))
    return handle


def read_bytes(path: Path) -> bytes:
    """All of a regular file; OSError otherwise."""
    with open(open_file(path), "rb") as file:
        return file.read()


def read_json(path: Path) -> dict[str, Any]:
    """The object in the file; empty when it is missing, half-written or something else."""
    try:
        content = json.loads(read_bytes(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def now() -> str:
    """The time as the run folder writes it: UTC, ISO 8601, microseconds, ``Z``."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_stamp(text: object) -> datetime | None:
    """The time of a stamp, or None; without a zone it is UTC. Python 3.10 does not read a ``Z``."""
    if not isinstance(text, str):
        return None
    try:
        found = datetime.fromisoformat(text.removesuffix("Z"))
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=timezone.utc)


def integer(value: object) -> int | None:
    """The whole number in a JSON value, or None; one of more than 64 bits counts nothing of ours."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        return None
    try:
        found = int(value)
    except ValueError:
        return None
    return found if abs(found) < 1 << 63 else None


def real(value: object) -> float | None:
    """The finite number in a JSON value, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) < 1 << 63 else None


def words(value: object) -> str | None:
    """The text in a JSON value, or None."""
    return value if isinstance(value, str) else None


def strings(value: object) -> list[str]:
    """The list of texts in a JSON value; empty when it is no list."""
    return [str(item) for item in value] if isinstance(value, list) else []


def _umask() -> int:
    """Read from /proc: asking the system means setting it, which other threads would notice."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    except (OSError, ValueError, IndexError):
        pass
    return 0o022
