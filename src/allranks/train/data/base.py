"""What every feed is: an epoch of ``(batch, share)`` pairs, equal in number on all ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from allranks.errors import UsageError
from allranks.train.data.audit import AuditReport
from allranks.train.data.batch_transfer import prefetch_to_device

Pair = tuple[Any, "BatchWeight | None"]


@dataclass(frozen=True, slots=True)
class BatchWeight:
    """How much a batch that is not full counts for."""

    count: int
    """Samples of this rank that count; 0 for a batch that only keeps the ranks in step."""
    factor: float
    """Factor for this rank's mean loss, so that the mean over ranks is the mean over samples."""
    total: int
    """Samples of the whole global batch, over all ranks."""


@lru_cache(maxsize=4096)
def weigh_batch(count: int, total: int, size: int) -> BatchWeight:
    """The share of a rank with ``count`` of ``total`` samples; the same object for the same numbers."""
    return BatchWeight(count, count * size / total if total else 0.0, total)


@dataclass(frozen=True)
class LoaderOptions:
    """How a loader is made distributed."""

    seed: int = 0
    """Decides the order of the samples and the random numbers of the workers."""
    batch_size_is: str = "per_rank"
    """"per_rank", or "global": the loader's batch_size is divided among the ranks."""
    shard_iterable: str | bool = "auto"
    """Deal a stream's batches out in turn: True, False, or "auto": when all ranks read the same."""
    audit: bool = True
    """Prove in the first epoch that every sample was handed out once."""
    prefetch: int = 2
    """Batches copied to the GPU ahead of the step."""
    dtype: torch.dtype | None = None
    """Floating-point tensors of a batch are converted to it; integers never are."""
    training: bool = True
    """False: nothing is dropped, whatever the loader's drop_last says."""

    def __post_init__(self) -> None:
        if self.batch_size_is not in ("per_rank", "global"):
            raise UsageError(
                f"batch_size_is='{self.batch_size_is}': must be 'per_rank' or 'global'."
            )
        if self.shard_iterable not in (True, False, "auto"):
            raise UsageError(
                f"shard_iterable={self.shard_iterable!r}: must be True, False or 'auto'."
            )


@dataclass(frozen=True)
class RankLayout:
    """Where a feed stands: which rank of how many, and the device its batches go to."""

    rank: int
    size: int
    device: torch.device


class DistributedLoader(ABC):
    """One loader made distributed. Every rank gets the same number of batches in each epoch.

    ``share`` is None when the batch is full on every rank, so that all weigh the same. Full is
    ``batch_size`` samples or, where that is unknown, as many as the first batch had.
    """

    def __init__(self, layout: RankLayout, options: LoaderOptions) -> None:
        self.layout = layout
        self.options = options
        self.notes: list[str] = []
        """What was changed and why, one sentence each."""
        self.warnings: list[str] = []
        """What is most likely a mistake, known before the first batch."""
        self.batch_size: int | None = None
        """Samples per rank in a full batch; None when unknown."""
        self.global_batch: int | None = None
        """Samples of a full batch over all ranks; None when unknown."""
        self.samples: int | None = None
        """Samples in an epoch over all ranks; None when unknown."""
        self.batches: int | None = None
        """Batches in an epoch, equal on all ranks; None when unknown."""
        self.endless = False
        """Whether an epoch has no end by itself."""

    def epoch(self, number: int, *, skip: int = 0) -> Iterator[Pair]:
        """The batches of epoch ``number``, on the device, after the first ``skip`` of them."""
        options, device = self.options, self.layout.device
        pairs = self._pairs(number, skip)
        return prefetch_to_device(pairs, device, options.dtype, options.prefetch)

    @abstractmethod
    def _pairs(self, number: int, skip: int) -> Iterator[Pair]:
        """The same, still on the host."""

    @abstractmethod
    def position(self, number: int, batches: int) -> dict[str, Any]:
        """Where epoch ``number`` stands after so many batches: plain values, for `resume`."""

    @abstractmethod
    def resume(self, number: int, position: Mapping[str, Any]) -> None:
        """Let the epoch go on there; ``epoch(number, skip=position["batches"])`` then does.

        An error where it cannot go on with every sample seen exactly once.
        """

    def batches_of(self, number: int) -> int | None:
        """Batches of epoch ``number``, those before a resumption included; None when unknown."""
        return self.batches

    def total_of(self, index: int) -> int | None:
        """Samples of global batch ``index`` of an epoch over all ranks; None when unknown."""
        return None

    def totals(self, number: int) -> Sequence[int] | None:
        """Samples of each global batch of epoch ``number``; None when unknown."""
        if self.batches is None:
            return None
        found = [self.total_of(index) for index in range(self.batches)]
        known = [total for total in found if total is not None]
        return known if len(known) == len(found) else None

    def check(self) -> AuditReport | None:
        """What the audit of the first epoch found. All ranks must call it; None without an audit."""
        return None

    def close(self) -> None:
        """End worker processes and let go of the data."""
        return


def check_unit(position: Mapping[str, Any], unit: str) -> None:
    """An error when a position was counted in something else than this data is."""
    if position["unit"] != unit:
        raise UsageError(
            f"The checkpoint stands in the middle of an epoch that was counted in {position['unit']}, "
            f"and this data is counted in {unit}.\n"
            "Give the same kind of data, or a checkpoint from the end of an epoch."
        )
