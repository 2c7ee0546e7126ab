"""Whether all ranks hold the same dataset: without that, sharing it out means nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import Subset

from allranks.errors import UsageError
from allranks.train.data.audit import ranks_text
from allranks.train.data.digest import fingerprint, index_array, mixed_seed, ordered_digest
from allranks.train.data.order import sized
from allranks.train.data.random_state import OwnRandomState

_SECONDS = 0.5


class Identity(NamedTuple):
    """What can be told of a dataset without reading it all."""

    length: int | None
    chosen: int
    """Digest of the indices of a Subset, of all Subsets below each other."""
    samples: tuple[int, ...]
    """Fingerprints of the first and the middle sample; empty when they could not be had."""


def identity(dataset: Any, read: bool) -> tuple[Identity, str]:
    """The identity of a dataset, and a note when its samples could not be read.

    ``read`` False leaves the samples alone: with workers, a file opened here would be shared by them.
    """
    length = len(dataset) if sized(dataset) else None
    samples, note = _samples(dataset, length) if read and length else ((), "")
    return Identity(length, _chosen(dataset), samples), note


def _chosen(dataset: Any) -> int:
    word = 0
    while isinstance(dataset, Subset):
        indices = index_array(np.asarray(dataset.indices))
        word = mixed_seed(word, ordered_digest(indices).total)
        dataset = dataset.dataset
    return word


def _samples(dataset: Any, length: int) -> tuple[tuple[int, ...], str]:
    start = time.perf_counter()
    found: list[int] = []
    try:
        for index in dict.fromkeys((0, length // 2)):
            twice = {_sample(dataset, index) for _ in range(2)}
            if len(twice) > 1:  # augmented by random numbers that are not ours to set
                return (), ""
            found += twice
            if time.perf_counter() - start > _SECONDS:
                break
    except Exception as error:  # noqa: BLE001  the user's code; training will meet the error itself
        return (), f"samples were not compared over ranks: reading one failed with {error!r}."
    return tuple(found), ""


def _sample(dataset: Any, index: int) -> int:
    with OwnRandomState(index):
        return fingerprint(dataset[index])


def compare_identities(found: Sequence[Identity]) -> str:
    """What is wrong, if the datasets differ in content; an error when they differ in length or choice."""
    first = found[0]
    odd = [rank for rank, other in enumerate(found) if other.length != first.length]
    if odd:
        raise UsageError(
            f"The dataset has {first.length} samples on rank 0 and {found[odd[0]].length} on rank "
            f"{odd[0]}. Give every rank the whole dataset: allranks shares it out."
        )
    odd = [rank for rank, other in enumerate(found) if other.chosen != first.chosen]
    if odd:
        raise UsageError(
            f"{ranks_text([0, *odd])} hold different parts of the dataset, so samples would be seen "
            "twice or never. Split it the same on every rank, for example random_split(..., "
            "generator=torch.Generator().manual_seed(0)), and do not share it out by rank yourself."
        )
    return _contents(found)


def _contents(found: Sequence[Identity]) -> str:
    least = min(len(other.samples) for other in found)
    odd = [r for r, other in enumerate(found) if other.samples[:least] != found[0].samples[:least]]
    if not odd:
        return ""
    return (
        f"{ranks_text([0, *odd])} hold datasets of the same length with different samples. Data made "
        "from random numbers needs the same seed on every rank; data read from files the same files."
    )
