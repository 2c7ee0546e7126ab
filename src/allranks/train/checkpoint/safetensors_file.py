"""One file of tensors in the safetensors format, which any tool reads.

8 bytes with the length of the header (little-endian), the header (JSON: name → dtype, shape and place),
then the bytes of the tensors without gaps. No code in it, none run to read it.
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
"""The format's names for torch's types. An old torch lacks some."""
_WORDS = {dtype: name for name, dtype in DTYPES.items()}
_AS_PAIRS = {"C128": "F64", "C32": "F16"}
"""Types that the format lacks: kept as pairs of numbers, real and imaginary."""


def dtype_name(dtype: torch.dtype, key: str = "a tensor") -> str:
    """The format's word for a type; UsageError, which names the ``key``, for one that has none."""
    if dtype not in _WORDS:
        raise UsageError(
            f"'{key}' cannot be saved: it is of type {dtype}. Convert it to one that is common."
        )
    return _WORDS[dtype]


def bits(tensor: Tensor) -> Tensor:
    """The tensor's bytes in their order, as one row; no copy when they lie in order already."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return plain.view(torch.uint8) if plain.numel() else plain.new_empty(0, dtype=torch.uint8)


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of a file: its type as the manifest names it, its shape, its bytes after the header."""

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

    def described(self) -> dict[str, Any]:
        shape = [*self.shape, 2] if self.dtype in _AS_PAIRS else [*self.shape]
        dtype = _AS_PAIRS.get(self.dtype, self.dtype)
        return {"dtype": dtype, "shape": shape, "data_offsets": [self.start, self.end]}


def lay_out(entries: Sequence[TensorEntry]) -> list[TensorEntry]:
    """Give each entry its place: wide types first, so that all lie on addresses that suit them."""
    order = sorted(entries, key=lambda entry: -DTYPES[entry.dtype].itemsize)
    placed, start = [], 0
    for entry in order:
        placed.append(TensorEntry(entry.name, entry.dtype, entry.shape, start))
        start = placed[-1].end
    return placed


def header(entries: Iterable[TensorEntry], notes: Mapping[str, str] | None = None) -> bytes:
    """The beginning of a file, padded so that the data begins at a multiple of 8."""
    content: dict[str, Any] = {"__metadata__": dict(notes)} if notes else {}
    content |= {entry.name: entry.described() for entry in entries}
    text = json.dumps(content, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def write_file(path: Path, parts: Iterable[Any]) -> dict[str, Any]:
    """Write buffers one after the other, and to the disk; the size and the checksum of the file."""
    size = total = 0
    with open(path, "wb", buffering=0) as file:
        for part in parts:
            view = memoryview(part)
            for start in range(0, len(view), _BLOCK):
                block = view[start : start + _BLOCK]
                total = zlib.crc32(block, total)
                size += len(block)
                while block:  # a single write may take less than it was given
                    block = block[os.write(file.fileno(), block) :]
        os.fsync(file.fileno())
    return {"bytes": size, "crc32": f"{total:08x}"}


class SafetensorsFile:
    """A file of tensors, mapped into memory: what is not looked at is not read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with open(path, "rb") as file:
                # A private copy: torch wants memory that it may write, the file stays as it is.
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except (OSError, ValueError) as error:
            raise BrokenCheckpoint(f"{path} cannot be read: {error}.") from None
        length = int.from_bytes(self._map[:8], "little")
        self._begin = 8 + length
        try:
            self._entries: dict[str, Any] = json.loads(self._map[8 : self._begin])
            self._entries.pop("__metadata__", None)
        except (ValueError, AttributeError):
            raise BrokenCheckpoint(f"{path} is no safetensors file.") from None

    def names(self) -> list[str]:
        """The tensors in it."""
        return [*self._entries]

    def tensor(self, name: str, dtype: str, shape: Sequence[int]) -> Tensor:
        """One tensor, in place; BrokenCheckpoint when the file has another one there."""
        entry = TensorEntry(name, dtype, tuple(shape))
        found = self._entries.get(name, {})
        begin, end = found.get("data_offsets", (0, -1))
        wanted = {**entry.described(), "data_offsets": [begin, end]}
        if found != wanted or end - begin != entry.size or self._begin + end > len(self._map):
            raise BrokenCheckpoint(f"{self.path} does not hold '{name}' as {dtype} {[*shape]}.")
        if not entry.size:
            return torch.empty(entry.shape, dtype=DTYPES[dtype])
        raw = torch.frombuffer(
            self._map, dtype=torch.uint8, count=entry.size, offset=self._begin + begin
        )
        return raw.view(DTYPES[dtype]).reshape(entry.shape)
