"""How ranks tell rank 0 that their files are complete: by small files in the folder under way."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from allranks.train.checkpoint.durable_io import write_durable
from allranks.train.checkpoint.manifest import BrokenCheckpoint
from allranks.train.checkpoint.write_plan import TensorChunk

PATIENCE = 600.0
"""Seconds in which the other ranks must have written something, or rank 0 gives the save up."""

_LONGEST_PAUSE = 1.0
"""Seconds between two looks at last: each asks the server of the file system."""

SAVE_CANCELLED = "the save was given up"
"""What rank 0 says when it was told to stop waiting for the others."""


class SaveFailed(BrokenCheckpoint):
    """A checkpoint that did not come about."""


def described(named: Mapping[str, TensorChunk]) -> list[dict[str, Any]]:
    """The chunks of a file, by their names in it, for a note."""
    return [
        {
            "key": piece.key,
            "dtype": piece.dtype,
            "whole": [*piece.whole],
            "offsets": [*piece.offsets],
            "shape": [*piece.shape],
            "name": name,
        }
        for name, piece in named.items()
    ]


def report(part: Path, rank: int, note: Mapping[str, Any]) -> None:
    """Note that this rank's file is on the disk: its size, checksum, chunks, and tied keys."""
    write_durable(_note(part, rank), json.dumps(note))


def failed(part: Path, rank: int, problem: str) -> None:
    """Note that this rank cannot: its half file goes first, so that there is room for the note."""
    # Where even that fails, the folder is gone or nothing can be written: the ranks' next exchange tells.
    with suppress(OSError):
        (part / f"rank-{rank:05d}.safetensors").unlink()
    with suppress(OSError):
        (part / f"rank-{rank:05d}.failed").write_text(problem)


def gather(
    part: Path, size: int, order: Sequence[str], given_up: threading.Event
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Wait for all ranks' notes; ``files`` and ``tensors`` of the manifest. The notes are removed."""
    _await(part, size, given_up)
    notes = [json.loads(_note(part, rank).read_bytes()) for rank in range(size)]
    files = {note["file"]: _sized(part, note) for note in notes if note["file"]}
    tensors: dict[str, Any] = {}
    ties: dict[str, str] = {}
    for note in notes:
        ties |= note["ties"]
        for chunk in note["chunks"]:
            _add(tensors, chunk, note["file"])
    for entry in tensors.values():
        entry["chunks"] = [*entry["chunks"].values()]
    for key, other in ties.items():
        tensors.setdefault(key, {"same_as": other})
    for rank in range(size):
        _note(part, rank).unlink()
    rank_of = {key: number for number, key in enumerate(order)}
    return files, dict(sorted(tensors.items(), key=lambda item: rank_of.get(item[0], len(order))))


def _note(part: Path, rank: int) -> Path:
    return part / f"rank-{rank:05d}.json"


def _await(part: Path, size: int, given_up: threading.Event) -> None:
    """Look until every note is there; files that grow, which is looked at rarely, renew the patience."""
    wanted = {_note(part, rank).name for rank in range(size)}
    pause, seen, moved = 0.002, -1, time.monotonic()
    weighed, told = moved - PATIENCE, False
    while True:
        names = _names(part)
        if broken := sorted(name for name in names if name.endswith(".failed")):
            number = int(broken[0][5:10])
            raise SaveFailed(f"rank {number}: {(part / broken[0]).read_text()}")
        if wanted <= names:
            return
        if told:
            raise SaveFailed(SAVE_CANCELLED)
        if (moment := time.monotonic()) - weighed > PATIENCE / 10:
            weighed = moment
            if (total := _bytes(part)) != seen:
                seen, moved = total, moment
        if moment - moved > PATIENCE:
            missing = ", ".join(sorted(name[5:10].lstrip("0") or "0" for name in wanted - names))
            raise SaveFailed(f"rank {missing} did not write anything for {PATIENCE:.0f} s")
        told = given_up.wait(pause)
        pause = min(_LONGEST_PAUSE, pause * 1.5)


def _names(part: Path) -> set[str]:
    """What is there. A file made and removed makes NFS look at the server, not at its memory."""
    touch = part / ".look"
    touch.touch()
    touch.unlink()
    return {path.name for path in part.iterdir()}


def _bytes(part: Path) -> int:
    """How much all ranks have written."""
    total = 0
    for entry in os.scandir(part):
        with suppress(FileNotFoundError):  # a note's temporary file, renamed meanwhile
            total += entry.stat().st_size
    return total


def _sized(part: Path, note: Mapping[str, Any]) -> dict[str, Any]:
    """The file's entry, if rank 0 sees it as the rank wrote it."""
    with open(part / note["file"], "rb") as file:  # opening renews what NFS knows of it
        size = os.fstat(file.fileno()).st_size
    if size != note["bytes"]:
        raise SaveFailed(f"{note['file']} has {size} bytes here, not {note['bytes']}")
    return {"bytes": note["bytes"], "crc32": note["crc32"]}


def _add(tensors: dict[str, Any], chunk: Mapping[str, Any], file: str) -> None:
    fresh = {"dtype": chunk["dtype"], "shape": chunk["whole"], "chunks": {}}
    entry = tensors.setdefault(chunk["key"], fresh)
    if (entry["dtype"], entry["shape"]) != (chunk["dtype"], chunk["whole"]):
        raise SaveFailed(f"the ranks disagree on the shape or type of '{chunk['key']}'")
    box = {"file": file, "offsets": chunk["offsets"], "shape": chunk["shape"]}
    if chunk["name"] != chunk["key"]:
        box["name"] = chunk["name"]
    # Ranks that hold the same box whole may both have written it: one is enough.
    entry["chunks"].setdefault((*chunk["offsets"], *chunk["shape"]), box)
