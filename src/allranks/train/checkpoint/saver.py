"""Saving one rank's part of a checkpoint beside the training; rank 0 publishes when all parts are there.

The calling thread only copies. A thread of this rank writes the copy; ranks hear of each other through
small files in the folder under way, never through a process group, whose calls belong to the training.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from allranks.errors import UsageError
from allranks.runs.atomic_files import now
from allranks.train.checkpoint.checkpoint_reader import refuse_unreadable
from allranks.train.checkpoint.completion_notes import described, failed, gather, report
from allranks.train.checkpoint.manifest import Manifest, SavedCheckpoint
from allranks.train.checkpoint.safetensors_file import TensorEntry, header, lay_out, write_file
from allranks.train.checkpoint.staging import Staging
from allranks.train.checkpoint.store import CheckpointStore
from allranks.train.checkpoint.write_plan import CheckpointState, TensorChunk, named, plan


@dataclass(frozen=True)
class _Job:
    """One save, as the thread needs it: no tensor of the training is held any longer."""

    part: Path
    about: Mapping[str, Any]
    done: Callable[[SavedCheckpoint], None] | None
    links: Iterable[str]
    keeping: tuple[int, float | None]
    began: float
    placed: list[TensorEntry]
    staging: Staging
    note: dict[str, Any]
    """What the other ranks are told of this one's file."""
    blobs: dict[str, torch.Tensor]
    order: list[str]
    """The keys as the training lists them."""


class CheckpointSaver:
    """Saves again and again, one at a time, from one rank."""

    def __init__(
        self,
        store: CheckpointStore,
        rank: int,
        size: int,
        token: str,
        *,
        asynchronous: bool = True,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        """``warn`` is told, in the thread, what a published checkpoint leaves to be wished."""
        self._store, self._rank, self._size, self._token = store, rank, size, token
        self._asynchronous, self._warn = asynchronous, warn or _warn
        self._warned: set[str] = set()
        self._staging = Staging()
        self._thread: threading.Thread | None = None
        self._given_up = threading.Event()
        self.problem = ""
        """Why the last save failed; empty when it did not."""
        self.taken_over = False
        """Whether the last save failed because a later start of the run owns the folder."""
        self.seconds = 0.0
        """How long the last save took, to the end."""

    @property
    def busy(self) -> bool:
        """Whether a save is under way on this rank."""
        return self._thread is not None and self._thread.is_alive()

    def start(
        self,
        snapshot: CheckpointState,
        part: Path,
        about: Mapping[str, Any],
        done: Callable[[SavedCheckpoint], None] | None = None,
        *,
        links: Iterable[str] = (),
        keep: int = 3,
        keep_every: float | None = None,
    ) -> None:
        """Copy the snapshot and begin to write it into ``part``; every rank calls it alike.

        ``about`` are fields of the manifest (step, epoch, …). On rank 0 ``done`` is called, in the
        thread, with what was published, under ``links`` too; ``keep`` and ``keep_every`` say what of the
        older ones stays.
        """
        self.wait()
        began = time.monotonic()
        self.problem, self.taken_over = "", False
        self._given_up.clear()
        blobs = snapshot.blobs(self._rank)
        pieces, note = self._planned(snapshot, blobs)
        placed = lay_out(
            [TensorEntry(name, piece.dtype, piece.shape) for name, piece in pieces.items()]
        )
        try:
            self._staging.copy([(entry, pieces[entry.name].source) for entry in placed])
        except (OSError, MemoryError, RuntimeError) as error:  # no memory for the copy
            self._fail(part, error)
            return
        order, keeping = [*snapshot.tensors], (keep, keep_every)
        job = _Job(
            part, about, done, links, keeping, began, placed, self._staging, note, blobs, order
        )
        if self._asynchronous:
            self._thread = threading.Thread(
                target=self._work, args=[job], name="allranks-checkpoint", daemon=True
            )
            self._thread.start()
        else:
            self._work(job)

    def wait(self, timeout: float | None = None) -> None:
        """Until the save under way has ended, well or not: see ``problem``."""
        if self._thread is not None:
            self._thread.join(timeout)

    def cancel(self) -> None:
        """Let rank 0 stop waiting for the others: one of them has failed."""
        self._given_up.set()

    def close(self) -> None:
        """Give the memory of the copies back: at once, or when the save under way has ended."""
        self._staging = Staging()

    def _planned(
        self, snapshot: CheckpointState, blobs: Mapping[str, torch.Tensor]
    ) -> tuple[dict[str, TensorChunk], dict[str, Any]]:
        """What this rank writes, by its name in the file, and the note of it."""
        if taken := blobs.keys() & snapshot.tensors.keys():
            raise UsageError(f"A tensor must not be called '{taken.pop()}': that name is taken.")
        made = plan(snapshot.tensors, self._rank, self._size, everywhere=snapshot.everywhere)
        for key, row in blobs.items():
            shape = tuple(row.shape)
            made.pieces.append(TensorChunk(key, "U8", shape, (0,), shape, row))
        found = named(made.pieces)
        return found, {"chunks": described(found), "ties": made.ties}

    def _work(self, job: _Job) -> None:
        """The thread. Whatever happens ends in ``problem``, and the training goes on."""
        try:
            self._write(job)
            if self._rank == 0:
                self._publish(job)
        except Exception as error:  # noqa: BLE001 - told by `problem`; a dead thread tells nothing
            self._fail(job.part, error)
        finally:
            self.seconds = time.monotonic() - job.began

    def _fail(self, part: Path, error: Exception) -> None:
        owner = self._store.owner().get("token")
        self.taken_over = owner not in (None, self._token)
        # The newer start has removed our folder: that is why, whatever we ran into.
        self.problem = (
            str(self._store.ownership_error(part)) if self.taken_over else _in_words(error)
        )
        if self._rank == 0:
            self._store.discard(part)
        else:
            failed(part, self._rank, self.problem)

    def _write(self, job: _Job) -> None:
        """This rank's file, then the note that it is complete."""
        refuse_unreadable(job.blobs)
        name = f"rank-{self._rank:05d}.safetensors"
        file: dict[str, Any] = {"file": None}
        if job.placed:
            parts = (header(job.placed), *job.staging.parts())
            file = {"file": name, **write_file(job.part / name, parts)}
        report(job.part, self._rank, {**file, **job.note})

    def _publish(self, job: _Job) -> None:
        files, tensors = gather(job.part, self._size, job.order, self._given_up)
        manifest = Manifest(
            **job.about,
            time=now(),
            world_size=self._size,
            seconds=round(time.monotonic() - job.began, 3),
            versions=_versions(),
            files=files,
            tensors=tensors,
        )
        path = self._store.publish(
            job.part, manifest, self._token, job.links, partial(self._tell, "names")
        )
        try:
            self._after(job, SavedCheckpoint(path, manifest))
        except Exception as error:  # noqa: BLE001 - it is published, whatever follows
            self._tell("rest", f"{path} is saved; what follows a save failed: {_in_words(error)}.")

    def _after(self, job: _Job, saved: SavedCheckpoint) -> None:
        if job.done is not None:
            job.done(saved)
        if not self._store.is_owned_by(self._token):
            return
        try:
            self._store.prune(*job.keeping)
        except OSError as error:
            self._tell("pruning", f"older checkpoints cannot be removed: {_in_words(error)}.")

    def _tell(self, kind: str, text: str) -> None:
        """Once of each kind: what fails after one save fails after each."""
        if kind not in self._warned:
            self._warned.add(kind)
            self._warn(text)


def _warn(text: str) -> None:
    print(f"allranks: WARNING: {text}", file=sys.stderr, flush=True)


def _versions() -> dict[str, str]:
    import platform

    from allranks._version import __version__

    return {
        "allranks": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }


def _in_words(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return str(error) or type(error).__name__
