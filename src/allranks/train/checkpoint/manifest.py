"""``manifest.json``: what a checkpoint holds, where, and how to tell that all of it is there.

One line per field, so that people can read it; the last line is the checksum of those before.
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


class BrokenCheckpoint(AllranksError):
    """A checkpoint that must not be used: something is missing, cut short or changed."""


class NewerCheckpoint(AllranksError):
    """A checkpoint that a later version of allranks wrote: sound, but not for this one to read."""

    exit_code = 2


@dataclass(frozen=True)
class Manifest:
    """What ``manifest.json`` says."""

    step: int
    """Steps that were made."""
    epoch: int = 0
    """The epoch that they were in, counted from 1."""
    samples: int = 0
    """Samples seen so far, over all ranks."""
    time: str = ""
    """When it was saved: UTC, ISO 8601."""
    world_size: int = 1
    """Ranks that wrote it."""
    strategy: str = ""
    """How the model was spread over them."""
    finished: bool = False
    """Whether the training was at its end."""
    seconds: float = 0.0
    """How long the save took."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of allranks, torch and Python."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """The newest value of each."""
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """File → its ``bytes`` and ``crc32``."""
    tensors: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Key → ``dtype``, ``shape`` and ``chunks``, or ``same_as``: the key that holds its values."""
    format: int = FORMAT
    """Of the folder; one that is later than this allranks knows is refused."""

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """The manifest of a step folder.

        BrokenCheckpoint when it is missing or not as written, UnreadableCheckpoint when that cannot be told.
        """
        path = folder / NAME
        try:
            text = read_with_retries(path.read_bytes).decode()
        except UnicodeDecodeError as error:
            raise BrokenCheckpoint(f"{path} is no text: {error}.") from None
        except OSError as error:
            if is_missing(error):
                raise BrokenCheckpoint(f"{folder} has no {NAME}.") from None
            raise UnreadableCheckpoint(
                f"{path} cannot be read: {error.strerror or error}."
            ) from None
        content = _checked(path, text)
        known = {entry.name for entry in fields(cls)}
        try:
            made = cls(**{key: value for key, value in content.items() if key in known})
            problem = made.contradiction()
        except (TypeError, KeyError, AttributeError) as error:
            raise BrokenCheckpoint(f"{path} lacks something: {error}.") from None
        if problem:
            raise BrokenCheckpoint(f"{path}: {problem}.")
        return made

    def to_json(self) -> str:
        """The text of the file."""
        names = ["format", *(entry.name for entry in fields(self) if entry.name != "format")]
        body = "{\n" + "".join(f"{_line(name, getattr(self, name))},\n" for name in names)
        return f'{body}"crc32": "{zlib.crc32(body.encode()):08x}"\n}}\n'

    @property
    def bytes(self) -> int:
        """The size of all files together."""
        return sum(int(entry["bytes"]) for entry in self.files.values())

    def contradiction(self) -> str:
        """What in it cannot be: a chunk in no file, a tensor with holes. Empty when all fits."""
        for name in self.files:
            if "/" in name or name in ("", ".", ".."):
                return f"'{name}' is no file of this folder"
        for key, entry in self.tensors.items():
            problem = self._twin(entry) if "same_as" in entry else self._gap(entry)
            if problem:
                return f"tensor '{key}' {problem}"
        return ""

    def _twin(self, entry: Mapping[str, Any]) -> str:
        other = self.tensors.get(entry["same_as"])
        return "" if other and "chunks" in other else f"is said to be '{entry['same_as']}'"

    def _gap(self, entry: Mapping[str, Any]) -> str:
        there = 0
        for chunk in entry["chunks"]:
            if chunk["file"] not in self.files:
                return f"lies in {chunk['file']}, which is not listed"
            there += math.prod(chunk["shape"])
        whole = math.prod(entry["shape"])
        return "" if there == whole else f"has {there} of its {whole} values"


def _line(name: str, value: Any) -> str:
    return f"{json.dumps(name)}: {json.dumps(_finite(value), default=str)}"


def _finite(value: Any) -> Any:
    """JSON knows neither nan nor infinity: a metric that is one becomes null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _finite(each) for key, each in value.items()}
    return value


def _checked(path: Path, text: str) -> dict[str, Any]:
    """The content, when the last line is the checksum of the others."""
    try:
        content = json.loads(text)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise BrokenCheckpoint(f"{path} is no JSON: it was cut short or changed.")
    if isinstance(content.get("format"), int) and content["format"] > FORMAT:
        raise NewerCheckpoint(
            f"{path.parent} has the format {content['format']}; this allranks reads {FORMAT}.\n"
            "Update it: pip install --upgrade allranks"
        )
    body, _, _ = text.rpartition('"crc32"')
    if content.get("crc32") != f"{zlib.crc32(body.encode()):08x}":
        raise BrokenCheckpoint(f"{path} was changed after it was written: its checksum differs.")
    return content


_STEP = re.compile(r"step-(\d{8,})(?:-(\d+))?")


@dataclass(frozen=True)
class SavedCheckpoint:
    """One published checkpoint: its manifest, or what is wrong with it."""

    path: Path
    manifest: Manifest | None
    problem: str = ""
    newer: bool = False
    """Written by a later version of allranks: not broken, but not for this one."""
    unreadable: bool = False
    """The file system did not give it out: it may be sound."""

    @property
    def step(self) -> int:
        return parse_step_folder(self.path.name)[0]


def parse_step_folder(name: str) -> tuple[int, int]:
    """Step and copy of a folder's name: ``step-00000500-2`` is (500, 2)."""
    match = _STEP.fullmatch(name)
    return (int(match[1]), int(match[2] or 1)) if match else (-1, 0)


def read_saved(path: Path) -> SavedCheckpoint:
    """A step folder as it stands."""
    try:
        return SavedCheckpoint(path, Manifest.read(path))
    except BrokenCheckpoint as error:
        return SavedCheckpoint(path, None, str(error))
    except UnreadableCheckpoint as error:
        return SavedCheckpoint(path, None, str(error), unreadable=True)
    except NewerCheckpoint as error:
        return SavedCheckpoint(path, None, str(error), newer=True)
