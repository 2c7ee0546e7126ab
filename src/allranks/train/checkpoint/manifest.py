"""``manifest.json``: the contents of a checkpoint, their files and their checksums. Does not import torch.

It has one line per field, so that people can read it; the last line is the checksum of the others.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from allranks.errors import AllranksError
from allranks.train.checkpoint.durable_io import UnreadableCheckpoint, is_missing, read_with_retries

NAME = "manifest.json"
FORMAT = 2
_STEP = re.compile(r"step-(\d{8,})(?:-(\d+))?")


class BrokenCheckpoint(AllranksError):
    """A checkpoint that must not be used: something is missing, truncated or changed."""


class NewerCheckpoint(AllranksError):
    """A checkpoint of a later version of allranks, which this version cannot read."""

    exit_code = 2


@dataclass(frozen=True)
class Manifest:
    """The content of ``manifest.json``."""

    step: int
    """Number of optimizer steps."""
    epoch: int = 0
    """The current epoch, counted from 1."""
    samples: int = 0
    """Samples seen so far, over all ranks."""
    time: str = ""
    """When it was saved: UTC, ISO 8601."""
    world_size: int = 1
    """Number of ranks that wrote it."""
    strategy: str = ""
    """The strategy that trained it."""
    finished: bool = False
    """Whether training was finished."""
    seconds: float = 0.0
    """How long the save took."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of allranks, torch and Python."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """The latest value of each metric."""
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """File → its ``bytes`` and ``crc32``."""
    tensors: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Key → ``dtype``, ``shape`` and ``chunks``, or ``same_as``: the key that holds its values."""
    format: int = FORMAT
    """Version of the folder's format; a later one than this allranks supports is rejected."""

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read the manifest of a step folder.

        Raise BrokenCheckpoint if it is missing or changed, UnreadableCheckpoint if it cannot be read now.
        """
        path = folder / NAME
        try:
            text = read_with_retries(path.read_bytes).decode()
        except UnicodeDecodeError as error:
            raise BrokenCheckpoint(f"{path} is not a text file: {error}.") from None
        except OSError as error:
            if is_missing(error):
                raise BrokenCheckpoint(f"{folder} has no {NAME}.") from None
            raise UnreadableCheckpoint(
                f"{path} cannot be read: {error.strerror or error}."
            ) from None
        content = _parse_checked(path, text)
        known = {entry.name for entry in fields(cls)}
        try:
            made = cls(**{key: value for key, value in content.items() if key in known})
            problem = made.contradiction()
        except (TypeError, KeyError, AttributeError) as error:
            raise BrokenCheckpoint(f"{path} is incomplete: {error}.") from None
        if problem:
            raise BrokenCheckpoint(f"{path}: {problem}.")
        return made

    def to_json(self) -> str:
        """Return the text of the file."""
        names = ["format", *(entry.name for entry in fields(self) if entry.name != "format")]
        body = "{\n" + "".join(f"{_line(name, getattr(self, name))},\n" for name in names)
        return f'{body}"crc32": "{zlib.crc32(body.encode()):08x}"\n}}\n'

    @property
    def bytes(self) -> int:
        """The size of all files together."""
        return sum(int(entry["bytes"]) for entry in self.files.values())

    def contradiction(self) -> str:
        """Return what is inconsistent: a chunk in no file, an incomplete tensor. Empty if nothing is."""
        for name in self.files:
            if "/" in name or name in ("", ".", ".."):
                return f"'{name}' is not a file of this folder"
        for key, entry in self.tensors.items():
            problem = self._tie_problem(entry) if "same_as" in entry else self._chunk_problem(entry)
            if problem:
                return f"tensor '{key}' {problem}"
        return ""

    def _tie_problem(self, entry: Mapping[str, Any]) -> str:
        other = self.tensors.get(entry["same_as"])
        return (
            ""
            if other and "chunks" in other
            else f"refers to '{entry['same_as']}', which is missing"
        )

    def _chunk_problem(self, entry: Mapping[str, Any]) -> str:
        there = 0
        for chunk in entry["chunks"]:
            if chunk["file"] not in self.files:
                return f"is in {chunk['file']}, which is not listed"
            there += math.prod(chunk["shape"])
        whole = math.prod(entry["shape"])
        return "" if there == whole else f"has {there} of its {whole} values"


def _line(name: str, value: Any) -> str:
    return f"{json.dumps(name)}: {json.dumps(_finite(value), default=str)}"


def _finite(value: Any) -> Any:
    """Replace nan and infinity, which JSON does not have, by null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _finite(each) for key, each in value.items()}
    return value


def _parse_checked(path: Path, text: str) -> dict[str, Any]:
    """Parse the text and check it against the checksum in its last line."""
    try:
        content = json.loads(text)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise BrokenCheckpoint(f"{path} is not valid JSON: it was truncated or changed.")
    if isinstance(content.get("format"), int) and content["format"] > FORMAT:
        raise NewerCheckpoint(
            f"{path.parent} has format {content['format']}; this allranks reads up to {FORMAT}.\n"
            "Update allranks: pip install --upgrade allranks"
        )
    body, _, _ = text.rpartition('"crc32"')
    if content.get("crc32") != f"{zlib.crc32(body.encode()):08x}":
        raise BrokenCheckpoint(f"{path} was changed after it was written: its checksum differs.")
    return content


@dataclass(frozen=True)
class SavedCheckpoint:
    """One published checkpoint: its manifest, or the reason why that cannot be used."""

    path: Path
    manifest: Manifest | None
    problem: str = ""
    newer: bool = False
    """Whether a later version of allranks wrote it: it is not broken, but cannot be read here."""
    unreadable: bool = False
    """Whether the file system failed to read it: it may be valid."""

    @property
    def step(self) -> int:
        return parse_step_folder(self.path.name)[0]


def parse_step_folder(name: str) -> tuple[int, int]:
    """Return step and copy of a folder's name: ``step-00000500-2`` is (500, 2)."""
    match = _STEP.fullmatch(name)
    return (int(match[1]), int(match[2] or 1)) if match else (-1, 0)


def read_saved(path: Path) -> SavedCheckpoint:
    """Read the manifest of a step folder, or the reason why it cannot be used."""
    try:
        return SavedCheckpoint(path, Manifest.read(path))
    except BrokenCheckpoint as error:
        return SavedCheckpoint(path, None, str(error))
    except UnreadableCheckpoint as error:
        return SavedCheckpoint(path, None, str(error), unreadable=True)
    except NewerCheckpoint as error:
        return SavedCheckpoint(path, None, str(error), newer=True)
