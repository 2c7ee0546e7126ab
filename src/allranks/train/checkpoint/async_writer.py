"""Save one rank's part of a checkpoint in the background; rank 0 publishes when all parts are complete.

The calling thread only copies. A thread of this rank writes the copy; ranks report to rank 0 by small files
in the checkpoint's folder, never through a process group, whose calls belong to the training.
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
from allranks.train.checkpoint.checkpoint_folder import CheckpointStore
from allranks.train.checkpoint.checkpoint_reader import check_readable
from allranks.train.checkpoint.manifest import Manifest, SavedCheckpoint
from allranks.train.checkpoint.rank_completion import (
    collect_notes,
    describe_chunks,
    report_done,
    report_failure,
)
from allranks.train.checkpoint.safetensors_file import TensorEntry, header, lay_out, write_file
from allranks.train.checkpoint.staging import Staging
from allranks.train.checkpoint.write_plan import (
    CheckpointState,
    TensorChunk,
    make_write_plan,
    name_chunks,
)


@dataclass(frozen=True)
class _Save:
    """One save, as the thread needs it; it holds no tensor of the training."""

    part: Path
    about: Mapping[str, Any]
    done: Callable[[SavedCheckpoint], None] | None
    links: Iterable[str]
    retention: tuple[int, float | None]
    began: float
    placed: list[TensorEntry]
    staging: Staging
    note: dict[str, Any]
    """The description of this rank's file for rank 0."""
    blobs: dict[str, torch.Tensor]
    order: list[str]
    """The keys in the order of the training state."""


class CheckpointSaver:
    """Saves the checkpoints of one rank, one at a time."""

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
        """``warn`` is called, in the thread, with problems that follow the publishing of a checkpoint."""
        self._store, self._rank, self._size, self._token = store, rank, size, token
        self._asynchronous, self._warn = asynchronous, warn or _warn
        self._warned: set[str] = set()
        self._staging = Staging()
        self._thread: threading.Thread | None = None
        self._cancelled = threading.Event()
        self.problem = ""
        """Why the last save failed; empty if it did not."""
        self.taken_over = False
        """Whether the last save failed because a later attempt of the run owns the folder."""
        self.seconds = 0.0
        """Duration of the last save, until it was published."""

    @property
    def busy(self) -> bool:
        """Whether a save is in progress on this rank."""
        return self._thread is not None and self._thread.is_alive()

    def start(
        self,
        state: CheckpointState,
        part: Path,
        about: Mapping[str, Any],
        done: Callable[[SavedCheckpoint], None] | None = None,
        *,
        links: Iterable[str] = (),
        keep: int = 3,
        keep_every: float | None = None,
    ) -> None:
        """Copy the state and start to write it into ``part``; every rank calls it.

        ``about`` are fields of the manifest (step, epoch, …). On rank 0 ``done`` is called, in the
        thread, with the published checkpoint, which gets the names ``links``; ``keep`` and ``keep_every``
        are the retention of older ones, see `CheckpointStore.prune`.
        """
        self.wait()
        began = time.monotonic()
        self.problem, self.taken_over = "", False
        self._cancelled.clear()
        blobs = state.blobs(self._rank)
        chunks, note = self._plan(state, blobs)
        placed = lay_out(
            [TensorEntry(name, chunk.dtype, chunk.shape) for name, chunk in chunks.items()]
        )
        try:
            self._staging.copy([(entry, chunks[entry.name].source) for entry in placed])
        except (OSError, MemoryError, RuntimeError) as error:  # no memory for the copy
            self._fail(part, error)
            return
        order, retention = [*state.tensors], (keep, keep_every)
        job = _Save(
            part, about, done, links, retention, began, placed, self._staging, note, blobs, order
        )
        if self._asynchronous:
            self._thread = threading.Thread(
                target=self._work, args=[job], name="allranks-checkpoint", daemon=True
            )
            self._thread.start()
        else:
            self._work(job)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the save in progress has ended; ``problem`` is empty if it succeeded."""
        if self._thread is not None:
            self._thread.join(timeout)

    def cancel(self) -> None:
        """Let rank 0 stop waiting for the others, because one of them has failed."""
        self._cancelled.set()

    def close(self) -> None:
        """Release the memory of the copies, now or when the save in progress has ended."""
        self._staging = Staging()

    def _plan(
        self, state: CheckpointState, blobs: Mapping[str, torch.Tensor]
    ) -> tuple[dict[str, TensorChunk], dict[str, Any]]:
        """Return the chunks that this rank writes, by their names in the file, and their description."""
        if taken := blobs.keys() & state.tensors.keys():
            raise UsageError(f"A tensor must not be called '{taken.pop()}': that name is reserved.")
        made = make_write_plan(state.tensors, self._rank, self._size, everywhere=state.everywhere)
        for key, row in blobs.items():
            shape = tuple(row.shape)
            made.chunks.append(TensorChunk(key, "U8", shape, (0,), shape, row))
        found = name_chunks(made.chunks)
        return found, {"chunks": describe_chunks(found), "ties": made.ties}

    def _work(self, job: _Save) -> None:
        """Write and publish. Any error ends in ``problem``, and training continues."""
        try:
            self._write(job)
            if self._rank == 0:
                self._publish(job)
        except Exception as error:  # noqa: BLE001 - reported by `problem`
            self._fail(job.part, error)
        finally:
            self.seconds = time.monotonic() - job.began

    def _fail(self, part: Path, error: Exception) -> None:
        owner = self._store.owner().get("token")
        self.taken_over = owner not in (None, self._token)
        # The later attempt has removed our folder: that is the cause, whatever the error says.
        self.problem = (
            str(self._store.ownership_error(part)) if self.taken_over else _describe_error(error)
        )
        if self._rank == 0:
            self._store.discard(part)
        else:
            report_failure(part, self._rank, self.problem)

    def _write(self, job: _Save) -> None:
        """Write this rank's file, then report that it is complete."""
        check_readable(job.blobs)
        name = f"rank-{self._rank:05d}.safetensors"
        file: dict[str, Any] = {"file": None}
        if job.placed:
            parts = (header(job.placed), *job.staging.parts())
            file = {"file": name, **write_file(job.part / name, parts)}
        report_done(job.part, self._rank, {**file, **job.note})

    def _publish(self, job: _Save) -> None:
        files, tensors = collect_notes(job.part, self._size, job.order, self._cancelled)
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
            job.part, manifest, self._token, job.links, partial(self._warn_once, "names")
        )
        try:
            self._after(job, SavedCheckpoint(path, manifest))
        except Exception as error:  # noqa: BLE001 - it is published, whatever follows
            self._warn_once(
                "rest", f"{path} is saved, but a later step failed: {_describe_error(error)}."
            )

    def _after(self, job: _Save, saved: SavedCheckpoint) -> None:
        if job.done is not None:
            job.done(saved)
        if not self._store.is_owned_by(self._token):
            return
        try:
            self._store.prune(*job.retention)
        except OSError as error:
            self._warn_once(
                "pruning", f"older checkpoints cannot be removed: {_describe_error(error)}."
            )

    def _warn_once(self, kind: str, text: str) -> None:
        """Warn once for each kind of problem: most occur after every save."""
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


def _describe_error(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return str(error) or type(error).__name__
