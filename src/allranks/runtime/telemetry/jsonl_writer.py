"""A file of JSON lines that a reader may follow: one writer, one ``write`` for each whole line."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


class JsonLinesWriter:
    """Opens the file at the first line. On a full disk it tries again with each line and reports once."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self._path = path
        self._say = say
        self._fd = -1
        self._torn = False
        self._reported = False

    def write(self, values: Mapping[str, Any]) -> bool:
        """Write one line; False when it could not be written."""
        text = json.dumps(values, separators=(", ", ": "), allow_nan=False).encode() + b"\n"
        try:
            if self._fd < 0:
                self._open()
            if self._torn:
                text = b"\n" + text
            if os.write(self._fd, text) < len(text):
                return self._fail("the disk is full")
        except OSError as error:
            return self._fail(error.strerror or str(error))
        self._torn = False
        return True

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> None:
        # Not the folders above: a removed run must not be created again.
        self._path.parent.mkdir(exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(self._path, flags, 0o644)
        # A writer before us may have been killed within a line.
        size = os.fstat(self._fd).st_size
        self._torn = size > 0 and os.pread(self._fd, 1, size - 1) != b"\n"

    def _fail(self, why: str) -> bool:
        self.close()
        if not self._reported:
            self._reported = True
            self._say(f"cannot write {self._path}: {why}")
        return False
