"""Whether a checkpoint is what was written: sizes always, checksums when asked. Needs no torch."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from allranks.train.checkpoint.patience import CannotRead, not_there, patiently
from allranks.train.checkpoint.saved import saved_at

_BLOCK = 16 << 20


def problems(
    path: Path, names: Sequence[str] | None = None, *, sizes_only: bool = False
) -> list[str]:
    """What is wrong with a step folder, in sentences; empty when nothing is.

    A sentence is a `CannotRead` when the file system is at fault, and the checkpoint may be sound.

    ``names`` are the files to look at, all by default: ranks share them out to read a large checkpoint.
    """
    saved = saved_at(path)
    if saved.manifest is None:
        return [CannotRead(saved.problem) if saved.unreadable else saved.problem]
    files = saved.manifest.files
    found = []
    for name in files if names is None else [name for name in names if name in files]:
        if problem := _problem(path / name, files[name], sizes_only):
            found.append(problem)
        if isinstance(problem, CannotRead):
            break  # the others would take as long to fail
    return found


def _problem(path: Path, wanted: Any, sizes_only: bool) -> str:
    try:
        size = patiently(path.stat).st_size
        if size != wanted["bytes"]:
            return f"{path.name} has {size} bytes, not {wanted['bytes']}."
        if sizes_only or patiently(lambda: checksum(path)) == wanted["crc32"]:
            return ""
    except OSError as error:
        if not_there(error):
            return f"{path.name} is missing."
        return CannotRead(f"{path.name} cannot be read: {error.strerror or error}.")
    return f"{path.name} was changed after it was written: its checksum differs."


def checksum(path: Path) -> str:
    """CRC-32 of a file. It finds accidents, at the speed of the disk; it is no signature."""
    total = 0
    with open(path, "rb", buffering=0) as file:
        block = bytearray(_BLOCK)
        view = memoryview(block)
        while count := file.readinto(block):
            total = zlib.crc32(view[:count], total)
    return f"{total:08x}"
