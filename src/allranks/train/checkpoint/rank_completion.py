"""Ranks report to rank 0 that their files are complete, by small files in the checkpoint's folder."""

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

TIMEOUT = 600.0
"""Seconds without any progress of the other ranks after which rank 0 cancels the save."""

_LONGEST_PAUSE = 1.0
"""Most seconds between two polls: each is a request to the file system's server."""

SAVE_CANCELLED = "the save was cancelled"
"""The problem that rank 0 reports when `CheckpointSaver.cancel` was called."""


class SaveFailed(BrokenCheckpoint):
    """A checkpoint that could not be saved."""


def describe_chunks(named: Mapping[str, TensorChunk]) -> list[dict[str, Any]]:
    """Describe the chunks of a file for a note, by their names in it."""
    return [
        {
            "key": chunk.key,
            "dtype": chunk.dtype,
            "whole": [*chunk.whole],
            "offsets": [*chunk.offsets],
            "shape": [*chunk.shape],
            "name": name,
        }
        for name, chunk in named.items()
    ]


def report_done(part: Path, rank: int, note: Mapping[str, Any]) -> None:
    """Report that this rank's file is on disk: its size, checksum, chunks, and tied keys."""
    write_durable(_note(part, rank), json.dumps(note))


def report_failure(part: Path, rank: int, problem: str) -> None:
    """Report a failure of this rank; its half-written file is deleted first, to free space for the note."""
    # If that fails too, the folder is gone or the disk is full: the ranks' next exchange reports it.
    with suppress(OSError):
        (part / f"rank-{rank:05d}.safetensors").unlink()
    with suppress(OSError):
        (part / f"rank-{rank:05d}.failed").write_text(problem)


def collect_notes(
    part: Path, size: int, order: Sequence[str], cancelled: threading.Event
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Wait for all ranks' notes; return ``files`` and ``tensors`` of the manifest and remove the notes."""
    _wait_for_notes(part, size, cancelled)
    notes = [json.loads(_note(part, rank).read_bytes()) for rank in range(size)]
    files = {note["file"]: _file_entry(part, note) for note in notes if note["file"]}
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


def _wait_for_notes(part: Path, size: int, cancelled: threading.Event) -> None:
    """Wait until every note exists; growing files, which are checked less often, restart the timeout."""
    wanted = {_note(part, rank).name for rank in range(size)}
    pause, seen, moved = 0.002, -1, time.monotonic()
    measured, was_cancelled = moved - TIMEOUT, False
    while True:
        names = _names(part)
        if broken := sorted(name for name in names if name.endswith(".failed")):
            number = int(broken[0][5:10])
            raise SaveFailed(f"rank {number}: {(part / broken[0]).read_text()}")
        if wanted <= names:
            return
        if was_cancelled:
            raise SaveFailed(SAVE_CANCELLED)
        if (moment := time.monotonic()) - measured > TIMEOUT / 10:
            measured = moment
            if (total := _bytes(part)) != seen:
                seen, moved = total, moment
        if moment - moved > TIMEOUT:
            missing = ", ".join(sorted(name[5:10].lstrip("0") or "0" for name in wanted - names))
            raise SaveFailed(f"rank {missing} did not write anything for {TIMEOUT:.0f} s")
        was_cancelled = cancelled.wait(pause)
        pause = min(_LONGEST_PAUSE, pause * 1.5)


def _names(part: Path) -> set[str]:
    """List the folder. Creating and removing a file makes NFS ask the server instead of its cache."""
    touch = part / ".look"
    touch.touch()
    touch.unlink()
    return {path.name for path in part.iterdir()}


def _bytes(part: Path) -> int:
    """Return how many bytes all ranks have written."""
    total = 0
    for entry in os.scandir(part):
        with suppress(FileNotFoundError):  # a note's temporary file that was renamed
            total += entry.stat().st_size
    return total


def _file_entry(part: Path, note: Mapping[str, Any]) -> dict[str, Any]:
    """Return the manifest entry of a file after checking that rank 0 sees its full size."""
    with open(part / note["file"], "rb") as file:  # opening refreshes NFS's attribute cache
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
    # Ranks that hold the same box may both have written it: one is enough.
    entry["chunks"].setdefault((*chunk["offsets"], *chunk["shape"]), box)
