"""The folder of one training's checkpoints: who may write, what is published, what is kept.

A checkpoint is made in a hidden ``.part`` folder and published by one rename, so that a reader sees all
of it or nothing. Only the newest start may publish: ``owner.json`` names it.
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
    clear_away,
    move_link,
    read_with_retries,
    remove_folder,
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
    """A later start of the same run owns the folder: this one must not publish any more."""


class CheckpointStore:
    """The checkpoints of one ``fit``; rank 0 alone calls what changes it."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)

    def take_over(self, about: Mapping[str, Any]) -> str:
        """Become the one that may publish, and clear what earlier starts left half done.

        Once it returns, no earlier start can publish: its folder under way is gone.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        token = uuid.uuid4().hex[:12]
        who = {"token": token, "host": socket.gethostname(), "pid": os.getpid(), "time": now()}
        write_durable(self.folder / "owner.json", json.dumps({**about, **who}, indent=2) + "\n")
        for path in self.folder.iterdir():
            if path.name.startswith(".step-") and path.name.endswith(".part"):
                remove_folder(path)
            else:
                clear_away(path)
        names = self._names()
        if names and not (self.folder / LATEST).exists():  # killed between the rename and the link
            move_link(self.folder / LATEST, names[0])
        return token

    def is_owned_by(self, token: str) -> bool:
        """Whether the start with this token is still the newest."""
        return self.owner().get("token") == token

    def owner(self) -> dict[str, Any]:
        """Who may publish: token, host, pid, time and what it told of itself."""
        return read_json(self.folder / "owner.json")

    def ownership_error(self, part: Path) -> OwnershipLost:
        """Why a start that is not the newest cannot save."""
        owner, step = self.owner(), part.name.split(".")[1]
        if "host" not in owner:
            return OwnershipLost(f"{step} is not saved: {self.folder / 'owner.json'} is gone.")
        return OwnershipLost(
            f"{step} is not saved: another start of this run owns {self.folder} "
            f"(host {owner['host']}, process {owner['pid']})."
        )

    def stage(self, step: int, token: str) -> Path:
        """An empty folder for a checkpoint under way."""
        # A name of its own each time: a straggler of a save given up must not write into the next.
        part = self.folder / f".step-{step:08d}.{token}-{uuid.uuid4().hex[:6]}.part"
        part.mkdir(parents=True)
        return part

    def discard(self, part: Path) -> None:
        """Remove a checkpoint that did not come about."""
        with suppress(OSError):  # a disk that refuses everything: the next start clears it
            remove_folder(part)

    def publish(
        self,
        part: Path,
        manifest: Manifest,
        token: str,
        links: Iterable[str] = (),
        warn: Callable[[str], None] = print,
    ) -> Path:
        """Make a complete folder the newest checkpoint; its files are on the disk already.

        It is published by the rename: what fails after it is told by `warn` and takes nothing back.
        """
        if problem := manifest.contradiction():
            raise BrokenCheckpoint(f"The ranks' parts do not make a whole: {problem}.")
        write_durable(part / NAME, manifest.to_json())
        sync_folder(part)
        if not self.is_owned_by(token):
            raise self.ownership_error(part)
        names = [*links, LATEST]
        path = self._rename(part, manifest.step)
        try:
            sync_folder(self.folder)
            for name in names:
                move_link(self.folder / name, path.name)
            sync_folder(self.folder)
        except OSError as error:
            warn(
                f"{path} is saved, but not all of its names ({', '.join(names)}) are set: {error.strerror}."
            )
        return path

    def _rename(self, part: Path, step: int) -> Path:
        """To the name of the step, numbered above every other save of it."""
        taken = [copy for at, copy in map(parse_step_folder, self._names()) if at == step]
        copy = max(taken, default=0) + 1
        path = self.folder / (f"step-{step:08d}" + (f"-{copy}" if copy > 1 else ""))
        part.rename(path)
        return path

    def _names(self) -> list[str]:
        """The published folders, newest first."""
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
        """Every published checkpoint, newest first: by step, then by the save of it."""
        return [read_saved(self.folder / name) for name in self._names()]

    def links(self) -> dict[str, str]:
        """Name → the folder it points at: ``latest``, ``best`` and those of the user."""
        found = sorted(
            path for path in self.folder.glob("*") if path.is_symlink() and path.name[0] != "."
        )
        return {path.name: path.readlink().name for path in found}

    def prune(self, keep: int, keep_every: float | None) -> list[str]:
        """Delete what nobody wants any more; the names of what went.

        What stays: the newest ``keep`` steps, what a link names, and one per ``keep_every`` seconds.
        Of two saves of one step the later stays. Broken ones are not counted and not touched. An OSError
        when some could not be removed.
        """
        sound = [saved for saved in self.list_saved() if saved.manifest]
        wanted = kept(sound, keep, keep_every) | {*self.links().values()}
        unwanted = [saved.path for saved in sound if saved.path.name not in wanted]
        failed: list[OSError] = []
        for path in unwanted:
            try:
                remove_folder(path)
            except OSError as error:  # the others can go
                failed.append(error)
        if failed:
            raise failed[0]
        return [path.name for path in unwanted]

    def set_aside(self) -> Path | None:
        """Move all checkpoints out of the way of a training that starts anew; None when there are none."""
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
        """Move a broken checkpoint out of the way, with a note; links to it go to the newest left."""
        aside = self.folder / QUARANTINE
        aside.mkdir(exist_ok=True)
        target = aside / path.name
        for number in range(2, 1000):
            if not target.exists():
                break
            target = aside / f"{path.name}.{number}"
        path.rename(target)
        write_text(target.with_name(f"{target.name}.txt"), f"{now()}\n{reason.strip()}\n")
        self._mend_links(path.name)
        return target

    def _mend_links(self, lost: str) -> None:
        names = self._names()
        for link, target in self.links().items():
            if target != lost:
                continue
            if link == LATEST and names:
                move_link(self.folder / link, names[0])
            else:
                (self.folder / link).unlink()

    def list_quarantined(self) -> list[tuple[Path, str]]:
        """The broken ones that were set aside, and why."""
        found = sorted(path for path in (self.folder / QUARANTINE).glob("step-*") if path.is_dir())
        return [(path, _note(path)) for path in found]

    def free_bytes(self) -> int:
        """Bytes that may still be written here."""
        return shutil.disk_usage(self.folder).free


def _folders_in(path: Path) -> list[str]:
    with os.scandir(path) as entries:
        return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]


def _note(path: Path) -> str:
    try:
        return path.with_name(f"{path.name}.txt").read_text().partition("\n")[2].strip()
    except OSError:
        return ""


def kept(newest_first: Sequence[SavedCheckpoint], keep: int, keep_every: float | None) -> set[str]:
    """The folders of the newest ``keep`` steps and of one per ``keep_every`` seconds.

    Of two saves of one step the later counts.
    """
    steps: dict[int, SavedCheckpoint] = {}
    for saved in newest_first:
        steps.setdefault(saved.step, saved)
    newest = [*steps.values()]
    wanted = {saved.path.name for saved in newest[: max(1, keep)]}
    return wanted | _spaced(newest, keep_every) if keep_every else wanted


def _spaced(newest_first: Sequence[SavedCheckpoint], seconds: float) -> set[str]:
    """From the oldest on, the next that is ``seconds`` later than the one before."""
    found: set[str] = set()
    last: float | None = None
    for saved in reversed(newest_first):
        stamp = parse_stamp(saved.manifest.time if saved.manifest else "")
        if stamp and (last is None or stamp.timestamp() - last >= seconds):
            last = stamp.timestamp()
            found.add(saved.path.name)
    return found
