"""The checkpoint folder of one training: ownership, publishing, retention, quarantine.

A checkpoint is written to a hidden ``.part`` folder and published by one rename, so that a reader sees all
of it or nothing. Only the latest attempt may publish: ``owner.json`` names it. Does not import torch.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from allranks.errors import AllranksError
from allranks.runs.atomic_files import now, parse_stamp, read_json, write_text
from allranks.train.checkpoint.durable_io import (
    UnreadableCheckpoint,
    read_with_retries,
    remove_folder,
    remove_leftover,
    replace_link,
    sync_folder,
    write_durable,
)
from allranks.train.checkpoint.manifest import (
    NAME,
    BrokenCheckpoint,
    Manifest,
    SavedCheckpoint,
    parse_step_folder,
    read_saved,
)

LATEST = "latest"
QUARANTINE = "quarantine"
EARLIER = "earlier"


class OwnershipLost(AllranksError):
    """A later attempt of the same run owns the folder: this one must not publish any more."""


class CheckpointStore:
    """The checkpoints of one ``fit``; only rank 0 calls the methods that change it."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)

    def take_over(self, about: Mapping[str, Any]) -> str:
        """Become the owner, which may publish, and remove unfinished checkpoints of earlier attempts.

        Once it returns, no earlier attempt can publish: the folder that it writes to is gone.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        token = uuid.uuid4().hex[:12]
        who = {"token": token, "host": socket.gethostname(), "pid": os.getpid(), "time": now()}
        write_durable(self.folder / "owner.json", json.dumps({**about, **who}, indent=2) + "\n")
        for path in self.folder.iterdir():
            if path.name.startswith(".step-") and path.name.endswith(".part"):
                remove_folder(path)
            else:
                remove_leftover(path)
        names = self._names()
        if names and not (self.folder / LATEST).exists():  # killed between the rename and the link
            replace_link(self.folder / LATEST, names[0])
        return token

    def is_owned_by(self, token: str) -> bool:
        """Return whether the attempt with this token still owns the folder."""
        return self.owner().get("token") == token

    def owner(self) -> dict[str, Any]:
        """Return the content of ``owner.json``: token, host, pid, time and what `take_over` was given."""
        return read_json(self.folder / "owner.json")

    def ownership_error(self, part: Path) -> OwnershipLost:
        """Return the error for an attempt that no longer owns the folder."""
        owner, step = self.owner(), part.name.split(".")[1]
        if "host" not in owner:
            return OwnershipLost(f"{step} is not saved: {self.folder / 'owner.json'} is missing.")
        return OwnershipLost(
            f"{step} is not saved: another attempt of this run owns {self.folder} "
            f"(host {owner['host']}, process {owner['pid']})."
        )

    def stage(self, step: int, token: str) -> Path:
        """Create an empty folder for a new checkpoint."""
        # The name is unique: a slow rank of a cancelled save must not write into the next one.
        part = self.folder / f".step-{step:08d}.{token}-{uuid.uuid4().hex[:6]}.part"
        part.mkdir(parents=True)
        return part

    def discard(self, part: Path) -> None:
        """Remove an unfinished checkpoint."""
        with suppress(OSError):  # on a failing disk it stays until the next start
            remove_folder(part)

    def publish(
        self,
        part: Path,
        manifest: Manifest,
        token: str,
        links: Iterable[str] = (),
        warn: Callable[[str], None] = print,
    ) -> Path:
        """Publish a complete folder, whose files are already on disk, as the newest checkpoint.

        The rename publishes it: later failures are passed to ``warn`` and do not undo it.
        """
        if problem := manifest.contradiction():
            raise BrokenCheckpoint(f"The parts of the ranks are not complete: {problem}.")
        write_durable(part / NAME, manifest.to_json())
        sync_folder(part)
        if not self.is_owned_by(token):
            raise self.ownership_error(part)
        names = [*links, LATEST]
        path = self._rename(part, manifest.step)
        try:
            sync_folder(self.folder)
            for name in names:
                replace_link(self.folder / name, path.name)
            sync_folder(self.folder)
        except OSError as error:
            warn(
                f"{path} is saved, but not all of its links ({', '.join(names)}) are set: {error.strerror}."
            )
        return path

    def _rename(self, part: Path, step: int) -> Path:
        """Rename the folder to its step, with a number if that step was saved before."""
        taken = [copy for at, copy in map(parse_step_folder, self._names()) if at == step]
        copy = max(taken, default=0) + 1
        path = self.folder / (f"step-{step:08d}" + (f"-{copy}" if copy > 1 else ""))
        part.rename(path)
        return path

    def _names(self) -> list[str]:
        """Return the names of the published folders, newest first."""
        try:
            found = read_with_retries(lambda: _folders_in(self.folder))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UnreadableCheckpoint(
                f"{self.folder} cannot be read: {error.strerror or error}."
            ) from None
        return sorted(
            (name for name in found if parse_step_folder(name)[0] >= 0),
            key=parse_step_folder,
            reverse=True,
        )

    def list_saved(self) -> list[SavedCheckpoint]:
        """Return every published checkpoint, newest first: by step, then by copy."""
        return [read_saved(self.folder / name) for name in self._names()]

    def links(self) -> dict[str, str]:
        """Return the links and the folders they point at: ``latest``, ``best`` and those of the user."""
        found = sorted(
            path for path in self.folder.glob("*") if path.is_symlink() and path.name[0] != "."
        )
        return {path.name: path.readlink().name for path in found}

    def prune(self, keep: int, keep_every: float | None) -> list[str]:
        """Delete old checkpoints and return their names.

        Kept are the newest ``keep`` steps, the targets of links, and one per ``keep_every`` seconds. Of two
        saves of one step the later is kept. Broken ones are neither counted nor deleted. Raise OSError if
        some could not be removed.
        """
        complete = [saved for saved in self.list_saved() if saved.manifest]
        wanted = select_retained(complete, keep, keep_every) | {*self.links().values()}
        unwanted = [saved.path for saved in complete if saved.path.name not in wanted]
        failed: list[OSError] = []
        for path in unwanted:
            try:
                remove_folder(path)
            except OSError as error:  # the others can still be removed
                failed.append(error)
        if failed:
            raise failed[0]
        return [path.name for path in unwanted]

    def set_aside(self) -> Path | None:
        """Move all checkpoints to a folder ``earlier`` before a new training; None if there are none."""
        names = self._names()
        if not names:
            return None
        aside, number = self.folder / EARLIER, 1
        while aside.exists():
            number += 1
            aside = self.folder / f"{EARLIER}-{number}"
        aside.mkdir()
        for link in self.links():
            (self.folder / link).rename(aside / link)
        for name in names:
            (self.folder / name).rename(aside / name)
        sync_folder(self.folder)
        return aside

    def quarantine(self, path: Path, reason: str) -> Path:
        """Move a broken checkpoint to ``quarantine`` with a note; ``latest`` then links to the newest left."""
        aside = self.folder / QUARANTINE
        aside.mkdir(exist_ok=True)
        target = aside / path.name
        for number in range(2, 1000):
            if not target.exists():
                break
            target = aside / f"{path.name}.{number}"
        path.rename(target)
        write_text(target.with_name(f"{target.name}.txt"), f"{now()}\n{reason.strip()}\n")
        self._fix_links(path.name)
        return target

    def _fix_links(self, lost: str) -> None:
        names = self._names()
        for link, target in self.links().items():
            if target != lost:
                continue
            if link == LATEST and names:
                replace_link(self.folder / link, names[0])
            else:
                (self.folder / link).unlink()

    def list_quarantined(self) -> list[tuple[Path, str]]:
        """Return the quarantined checkpoints and the reasons."""
        found = sorted(path for path in (self.folder / QUARANTINE).glob("step-*") if path.is_dir())
        return [(path, _note(path)) for path in found]

    def free_bytes(self) -> int:
        """Return the free bytes of the file system."""
        return shutil.disk_usage(self.folder).free


def _folders_in(path: Path) -> list[str]:
    with os.scandir(path) as entries:
        return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]


def _note(path: Path) -> str:
    try:
        return path.with_name(f"{path.name}.txt").read_text().partition("\n")[2].strip()
    except OSError:
        return ""


def select_retained(
    newest_first: Sequence[SavedCheckpoint], keep: int, keep_every: float | None
) -> set[str]:
    """Return the folders of the newest ``keep`` steps and of one per ``keep_every`` seconds.

    Of two saves of one step the later counts.
    """
    steps: dict[int, SavedCheckpoint] = {}
    for saved in newest_first:
        steps.setdefault(saved.step, saved)
    newest = [*steps.values()]
    wanted = {saved.path.name for saved in newest[: max(1, keep)]}
    return wanted | _spaced(newest, keep_every) if keep_every else wanted


def _spaced(newest_first: Sequence[SavedCheckpoint], seconds: float) -> set[str]:
    """Return, from the oldest on, the next that is ``seconds`` later than the one before."""
    found: set[str] = set()
    last: float | None = None
    for saved in reversed(newest_first):
        stamp = parse_stamp(saved.manifest.time if saved.manifest else "")
        if stamp and (last is None or stamp.timestamp() - last >= seconds):
            last = stamp.timestamp()
            found.add(saved.path.name)
    return found
