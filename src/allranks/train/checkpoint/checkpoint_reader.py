"""Reading a checkpoint: tensors out of memory-mapped files, put together from their chunks."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from allranks.errors import UsageError
from allranks.train.checkpoint.manifest import BrokenCheckpoint, Manifest
from allranks.train.checkpoint.safetensors_file import DTYPES, SafetensorsFile

_ZIP = b"PK\x03\x04"
"""How torch.save begins. Older kinds of files are never given to torch: before 2.6 it ran code in them."""
_OPEN_FILES = 256
"""Each mapped file takes a descriptor, and a large training has more files than a process may open."""


class CheckpointReader:
    """One step folder. Nothing is read before it is asked for, and no code in it is ever run."""

    path: Path
    """Where it is."""
    manifest: Manifest
    """What it holds."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.manifest = Manifest.read(self.path)
        self._files: dict[str, SafetensorsFile] = {}

    def keys(self) -> list[str]:
        """All tensors, blobs among them."""
        return [*self.manifest.tensors]

    def shape(self, key: str) -> tuple[int, ...]:
        """Of the whole tensor."""
        return tuple(self.entry(key)["shape"])

    def dtype(self, key: str) -> torch.dtype:
        """Of the tensor; BrokenCheckpoint when this torch has no such type."""
        word = self.entry(key)["dtype"]
        if word not in DTYPES:
            raise BrokenCheckpoint(
                f"{self.path}: '{key}' has the type {word}, unknown to this torch."
            )
        return DTYPES[word]

    def entry(self, key: str) -> Mapping[str, Any]:
        """What the manifest says of a tensor; of a tied one, what it says of the one with the values."""
        if key not in self.manifest.tensors:
            raise KeyError(f"{self.path} holds no tensor '{key}'")
        entry = self.manifest.tensors[key]
        return self.manifest.tensors[entry["same_as"]] if "same_as" in entry else entry

    def tensor(self, key: str) -> Tensor:
        """The whole tensor. In one chunk it is a view of the file: changing it changes no file."""
        shape = self.shape(key)
        return self.part(key, [0] * len(shape), shape)

    def part(self, key: str, offsets: Sequence[int], shape: Sequence[int]) -> Tensor:
        """A box of a tensor; only the chunks that it meets are touched."""
        entry = self.entry(key)
        met = [
            (chunk, meeting)
            for chunk in entry["chunks"]
            if (meeting := _meeting(offsets, shape, chunk)) is not None
        ]
        if len(met) == 1 and list(met[0][1][1]) == list(shape):
            chunk, (where, size) = met[0]
            return _cut(self._chunk(key, entry, chunk), where, chunk["offsets"], size)
        whole = torch.empty(tuple(shape), dtype=self.dtype(key))
        for chunk, (where, size) in met:
            source = _cut(self._chunk(key, entry, chunk), where, chunk["offsets"], size)
            _cut(whole, where, offsets, size).copy_(source)
        return whole

    def blob(self, key: str) -> Any:
        """What a blob holds: tensors and plain containers. Anything else in it is refused, unrun."""
        try:
            return unpack_blob(self.tensor(key))
        except ValueError as error:
            raise BrokenCheckpoint(f"'{key}' of {self.path} {error}") from None

    def _chunk(self, key: str, entry: Mapping[str, Any], chunk: Mapping[str, Any]) -> Tensor:
        self.dtype(key)
        file = chunk["file"]
        if file not in self._files:
            while len(self._files) >= _OPEN_FILES:
                del self._files[next(iter(self._files))]
            self._files[file] = SafetensorsFile(self.path / file)
        name = chunk.get("name") or self._holder(key)
        return self._files[file].tensor(name, entry["dtype"], chunk["shape"])

    def _holder(self, key: str) -> str:
        return str(self.manifest.tensors[key].get("same_as", key))


def pack_blob(value: Any) -> Tensor:
    """Tensors and plain containers as a row of bytes."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return torch.frombuffer(bytearray(buffer.getbuffer()), dtype=torch.uint8)


def unpack_blob(row: Tensor) -> Any:
    """The value of such a row; ValueError for one that would have to run code."""
    try:
        data = row.numpy().tobytes()
        if not data.startswith(_ZIP):
            raise ValueError("it is not of torch.save's own kind")
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        why = _first_reason(str(error))
        raise ValueError(f"is more than tensors and plain containers: {why}") from None


def refuse_unreadable(rows: Mapping[str, Tensor]) -> None:
    """What cannot be read back without running code must not be written: nobody could resume."""
    for key, row in rows.items():
        try:
            unpack_blob(row)
        except ValueError as error:
            raise UsageError(f"What was to be saved as '{key}' {error}") from None


def _first_reason(text: str) -> str:
    """What torch found, without its advice to trust the file."""
    reasons = [line for line in text.splitlines() if "Unsupported" in line]
    found = (reasons or text.splitlines() or ["it cannot be read"])[0].strip()
    return found.partition(" Please ")[0]


def _meeting(
    offsets: Sequence[int], shape: Sequence[int], chunk: Mapping[str, Any]
) -> tuple[list[int], list[int]] | None:
    """Where a box and a chunk overlap: offsets in the whole tensor, and the size."""
    where = [max(pair) for pair in zip(offsets, chunk["offsets"], strict=True)]
    ends = [
        min(a + n, b + m)
        for a, n, b, m in zip(offsets, shape, chunk["offsets"], chunk["shape"], strict=True)
    ]
    size = [end - start for start, end in zip(where, ends, strict=True)]
    return (where, size) if all(length > 0 for length in size) else None


def _cut(
    tensor: Tensor, where: Sequence[int], origin: Sequence[int], size: Sequence[int]
) -> Tensor:
    """The box at ``where`` out of a tensor that begins at ``origin``; a 0-d one is its own box."""
    for dim, (at, start, length) in enumerate(zip(where, origin, size, strict=True)):
        tensor = tensor.narrow(dim, at - start, length)
    return tensor
