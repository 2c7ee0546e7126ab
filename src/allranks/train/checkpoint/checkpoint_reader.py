"""Read a checkpoint: tensors from memory-mapped files, assembled from their chunks."""

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
"""The first bytes of torch.save's format. Legacy formats are rejected: torch before 2.6 ran code in them."""
_OPEN_FILES = 256
"""Most files to keep open: a large training has more files than a process may open."""


class CheckpointReader:
    """Reads one step folder. Tensors are read on access, and no code in it is ever run."""

    path: Path
    """The step folder."""
    manifest: Manifest
    """Its manifest."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.manifest = Manifest.read(self.path)
        self._files: dict[str, SafetensorsFile] = {}

    def keys(self) -> list[str]:
        """Return the keys of all tensors and blobs."""
        return [*self.manifest.tensors]

    def shape(self, key: str) -> tuple[int, ...]:
        """Return the shape of a whole tensor."""
        return tuple(self.entry(key)["shape"])

    def dtype(self, key: str) -> torch.dtype:
        """Return the type of a tensor; BrokenCheckpoint if this torch does not have it."""
        word = self.entry(key)["dtype"]
        if word not in DTYPES:
            raise BrokenCheckpoint(
                f"{self.path}: '{key}' has the type {word}, unknown to this torch."
            )
        return DTYPES[word]

    def entry(self, key: str) -> Mapping[str, Any]:
        """Return the manifest entry of a tensor; for a tied one, that of the tensor with the values."""
        if key not in self.manifest.tensors:
            raise KeyError(f"{self.path} holds no tensor '{key}'")
        entry = self.manifest.tensors[key]
        return self.manifest.tensors[entry["same_as"]] if "same_as" in entry else entry

    def tensor(self, key: str) -> Tensor:
        """Return a whole tensor. One with a single chunk maps the file; changing it changes no file."""
        shape = self.shape(key)
        return self.part(key, [0] * len(shape), shape)

    def part(self, key: str, offsets: Sequence[int], shape: Sequence[int]) -> Tensor:
        """Return a box of a tensor; only the chunks that overlap it are read."""
        entry = self.entry(key)
        overlaps = [
            (chunk, overlap)
            for chunk in entry["chunks"]
            if (overlap := _overlap(offsets, shape, chunk)) is not None
        ]
        if len(overlaps) == 1 and list(overlaps[0][1][1]) == list(shape):
            chunk, (where, size) = overlaps[0]
            return _cut(self._chunk(key, entry, chunk), where, chunk["offsets"], size)
        whole = torch.empty(tuple(shape), dtype=self.dtype(key))
        for chunk, (where, size) in overlaps:
            source = _cut(self._chunk(key, entry, chunk), where, chunk["offsets"], size)
            _cut(whole, where, offsets, size).copy_(source)
        return whole

    def blob(self, key: str) -> Any:
        """Return the content of a blob: tensors and plain containers. Anything else is rejected, not run."""
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
    """Serialize tensors and plain containers to a tensor of bytes."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return torch.frombuffer(bytearray(buffer.getbuffer()), dtype=torch.uint8)


def unpack_blob(row: Tensor) -> Any:
    """Deserialize a tensor of bytes; ValueError if that would run code."""
    try:
        data = row.numpy().tobytes()
        if not data.startswith(_ZIP):
            raise ValueError("it is not in torch.save's zip format")
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        why = _first_reason(str(error))
        raise ValueError(f"holds more than tensors and plain containers: {why}") from None


def check_readable(rows: Mapping[str, Tensor]) -> None:
    """Raise UsageError for blobs that could not be read back, so that no checkpoint is unusable."""
    for key, row in rows.items():
        try:
            unpack_blob(row)
        except ValueError as error:
            raise UsageError(f"The state to save as '{key}' {error}") from None


def _first_reason(text: str) -> str:
    """Return torch's reason without its advice to trust the file."""
    reasons = [line for line in text.splitlines() if "Unsupported" in line]
    found = (reasons or text.splitlines() or ["it cannot be read"])[0].strip()
    return found.partition(" Please ")[0]


def _overlap(
    offsets: Sequence[int], shape: Sequence[int], chunk: Mapping[str, Any]
) -> tuple[list[int], list[int]] | None:
    """Return the overlap of a box and a chunk: offsets in the whole tensor, and the size."""
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
    """Return the box at ``where`` from a tensor that begins at ``origin``."""
    for dim, (at, start, length) in enumerate(zip(where, origin, size, strict=True)):
        tensor = tensor.narrow(dim, at - start, length)
    return tensor
