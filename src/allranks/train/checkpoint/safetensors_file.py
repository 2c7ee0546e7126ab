"""Read and write files in the safetensors format.

8 bytes with the length of the header (little-endian), the header (JSON: name → dtype, shape, offsets),
then the bytes of the tensors without gaps. Reading it runs no code.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from allranks.errors import UsageError
from allranks.train.checkpoint.manifest import BrokenCheckpoint

_BLOCK = 64 << 20
_NAMES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32",
    "I32": "int32", "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": "bfloat16",
    "F32": "float32", "F64": "float64", "C64": "complex64", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu", "C128": "complex128", "C32": "complex32",
}  # fmt: skip
DTYPES = {name: getattr(torch, word) for name, word in _NAMES.items() if hasattr(torch, word)}
"""The format's names for torch's types. Old torch versions lack some."""
_WORDS = {dtype: name for name, dtype in DTYPES.items()}
_AS_PAIRS = {"C128": "F64", "C32": "F16"}
"""Types that the format lacks, stored as pairs of numbers: real and imaginary."""


def dtype_name(dtype: torch.dtype, key: str = "a tensor") -> str:
    """Return the format's name of a type; UsageError with the ``key`` if it has none."""
    if dtype not in _WORDS:
        raise UsageError(
            f"'{key}' cannot be saved: its type {dtype} is not supported. Convert it to another type."
        )
    return _WORDS[dtype]


def byte_view(tensor: Tensor) -> Tensor:
    """Return the tensor's bytes as a one-dimensional tensor; not a copy if they are contiguous."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return plain.view(torch.uint8) if plain.numel() else plain.new_empty(0, dtype=torch.uint8)


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of a file: its type as in the manifest, its shape, its offset after the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int = 0

    @property
    def size(self) -> int:
        return math.prod(self.shape) * int(DTYPES[self.dtype].itemsize)

    @property
    def end(self) -> int:
        return self.start + self.size

    def header_entry(self) -> dict[str, Any]:
        shape = [*self.shape, 2] if self.dtype in _AS_PAIRS else [*self.shape]
        dtype = _AS_PAIRS.get(self.dtype, self.dtype)
        return {"dtype": dtype, "shape": shape, "data_offsets": [self.start, self.end]}


def lay_out(entries: Sequence[TensorEntry]) -> list[TensorEntry]:
    """Assign offsets: types with large items first, so that all tensors are aligned."""
    order = sorted(entries, key=lambda entry: -DTYPES[entry.dtype].itemsize)
    placed, start = [], 0
    for entry in order:
        placed.append(TensorEntry(entry.name, entry.dtype, entry.shape, start))
        start = placed[-1].end
    return placed


def header(entries: Iterable[TensorEntry], notes: Mapping[str, str] | None = None) -> bytes:
    """Return the header of a file, padded so that the data begins at a multiple of 8."""
    content: dict[str, Any] = {"__metadata__": dict(notes)} if notes else {}
    content |= {entry.name: entry.header_entry() for entry in entries}
    text = json.dumps(content, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def write_file(path: Path, parts: Iterable[Any]) -> dict[str, Any]:
    """Write buffers to a file and flush it to disk; return its size and checksum."""
    size = total = 0
    with open(path, "wb", buffering=0) as file:
        for part in parts:
            view = memoryview(part)
            for start in range(0, len(view), _BLOCK):
                block = view[start : start + _BLOCK]
                total = zlib.crc32(block, total)
                size += len(block)
                while block:  # a single write may write less than all of it
                    block = block[os.write(file.fileno(), block) :]
        os.fsync(file.fileno())
    return {"bytes": size, "crc32": f"{total:08x}"}


class SafetensorsFile:
    """A memory-mapped file of tensors: only what is accessed is read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with open(path, "rb") as file:
                # Copy on write: torch needs writable memory, and the file must not change.
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except (OSError, ValueError) as error:
            raise BrokenCheckpoint(f"{path} cannot be read: {error}.") from None
        length = int.from_bytes(self._map[:8], "little")
        self._begin = 8 + length
        try:
            self._entries: dict[str, Any] = json.loads(self._map[8 : self._begin])
            self._entries.pop("__metadata__", None)
        except (ValueError, AttributeError):
            raise BrokenCheckpoint(f"{path} is not a safetensors file.") from None

    def tensor(self, name: str, dtype: str, shape: Sequence[int]) -> Tensor:
        """Return one tensor, mapped; BrokenCheckpoint if the file has another type or shape for it."""
        entry = TensorEntry(name, dtype, tuple(shape))
        found = self._entries.get(name, {})
        begin, end = found.get("data_offsets", (0, -1))
        wanted = {**entry.header_entry(), "data_offsets": [begin, end]}
        if found != wanted or end - begin != entry.size or self._begin + end > len(self._map):
            raise BrokenCheckpoint(f"{self.path} does not hold '{name}' as {dtype} {[*shape]}.")
        if not entry.size:
            return torch.empty(entry.shape, dtype=DTYPES[dtype])
        raw = torch.frombuffer(
            self._map, dtype=torch.uint8, count=entry.size, offset=self._begin + begin
        )
        return raw.view(DTYPES[dtype]).reshape(entry.shape)
