"""Digests to compare long lists of samples over ranks: 64-bit hashes of indices and of contents."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from allranks.train.data.batch_transfer import leaves

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]
    Words = npt.NDArray[np.uint64]
else:
    Array = Words = Any

_MASK = (1 << 64) - 1
_BYTES = 4096  # of a sample's tensor that are read for its fingerprint, at regular intervals


class Digest(NamedTuple):
    """The digest of a multiset of indices, independent of their order."""

    length: int
    total: int
    xor: int


def mix(words: Words) -> Words:
    """Spread every bit of each word over all 64 (splitmix64)."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Words = words ^ (words >> np.uint64(31))
    return mixed


def mix_seed(*parts: int) -> int:
    """Combine numbers such as (seed, epoch) to one seed; similar numbers give unrelated seeds."""
    word = 0
    for part in parts:  # as `mix`, for one word faster than arrays are
        word = ((word ^ (part & _MASK)) + 0x9E3779B97F4A7C15) & _MASK
        word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK
        word ^= word >> 31
    return word >> 1


def index_array(indices: Sequence[Any] | Array) -> Array:
    """Return indices as an array; keys that are not integers stay objects."""
    if isinstance(indices, np.ndarray):
        return indices
    if all(type(index) is int for index in indices):
        return np.array(indices, dtype=np.int64)
    made = np.empty(len(indices), dtype=object)
    made[:] = list(indices)
    return made


def _words(indices: Array) -> Words:
    if indices.dtype != object:
        return mix(indices.astype(np.int64, copy=False).view(np.uint64))
    return mix(np.array([_word(index) for index in indices], dtype=np.uint64))


def _word(index: Any) -> int:
    try:
        return operator.index(index) & _MASK
    except TypeError:
        name = hashlib.blake2b(repr(index).encode(), digest_size=8).digest()
        return int.from_bytes(name, "little")


def digest(parts: Iterable[Array]) -> Digest:
    """Return the digest of all indices in ``parts``, independent of their order."""
    pieces = [_words(part) for part in parts if len(part)]
    if not pieces:
        return Digest(0, 0, 0)
    words = np.concatenate(pieces)
    total = int(words.sum(dtype=np.uint64))
    return Digest(len(words), total, int(np.bitwise_xor.reduce(words)))


def ordered_digest(indices: Array) -> Digest:
    """Return a digest that depends on the order of the indices."""
    places = np.arange(len(indices), dtype=np.uint64)
    words = mix(_words(indices) + places)
    return Digest(len(words), int(words.sum(dtype=np.uint64)), 0)


def fingerprints(batch: Any, samples: int) -> Words | None:
    """Return one 64-bit word per sample of a batch on the host; None without a dimension of samples."""
    result: Words | None = None
    for leaf in leaves(batch):
        if isinstance(leaf, torch.Tensor):
            if leaf.device.type != "cpu" or leaf.layout != torch.strided:
                continue
            leaf = leaf.detach()
        if leaf.ndim == 0 or leaf.shape[0] != samples or samples == 0:
            continue
        rows = _row_words(leaf.reshape(samples, -1))
        result = rows if result is None else mix(result) ^ rows
    return result


def _row_words(rows: Any) -> Words:
    """Hash each row to one word; long rows are sampled at regular intervals."""
    item = rows.element_size() if isinstance(rows, torch.Tensor) else rows.itemsize
    step = -(-rows.shape[1] * item // _BYTES) or 1
    rows = rows[:, ::step]
    if isinstance(rows, torch.Tensor):
        rows = rows.contiguous().resolve_conj().resolve_neg().view(torch.uint8).numpy()
    data = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), -1)
    short = -data.shape[1] % 8
    words = np.pad(data, ((0, 0), (0, short))).view(np.uint64)
    places = mix(np.arange(words.shape[1], dtype=np.uint64))
    summed: Words = mix(words ^ places).sum(axis=1, dtype=np.uint64)
    return summed


def fingerprint(value: Any) -> int:
    """Return one word for a whole batch or sample: of its tensors, or of its repr without any."""
    word = 0
    for leaf in leaves(value):
        if isinstance(leaf, torch.Tensor):
            leaf = leaf.detach().cpu()
        row = leaf.reshape(1, -1)
        word = mix_seed(word, int(_row_words(row)[0]) if row.shape[1] else 1)
    return word if word else _word(repr(value)[:_BYTES])
