"""`DistributedLoader`: an epoch of ``(batch, weight)`` pairs, equal in number on all ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
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
    """The weight of a batch that is not full."""

    count: int
    """Samples of this rank that count; 0 for a batch that is repeated to keep the ranks in step."""
    factor: float
    """Factor for this rank's mean loss, so that the mean over ranks is the mean over samples."""
    total: int
    """Samples of the global batch, over all ranks."""


@lru_cache(maxsize=4096)
def weigh_batch(count: int, total: int, size: int) -> BatchWeight:
    """Return the weight of a rank with ``count`` of ``total`` samples."""
    return BatchWeight(count, count * size / total if total else 0.0, total)


@dataclass(frozen=True)
class LoaderOptions:
    """Options of `distribute_loader`."""

    seed: int = 0
    """Seed of the sample order and of the random numbers of the workers."""
    batch_size_is: str = "per_rank"
    """"per_rank", or "global": the loader's batch_size is divided among the ranks."""
    shard_iterable: str | bool = "auto"
    """Assign a stream's batches to the ranks in turn: True, False, or "auto": if all ranks read the same."""
    audit: bool = True
    """Check in the first epoch that every sample was yielded once."""
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
    """This rank, the number of ranks, and the device for the batches."""

    rank: int
    size: int
    device: torch.device


class DistributedLoader(ABC):
    """One loader made distributed. Every rank gets the same number of batches in each epoch.

    The weight of a batch is None when the batch is full on every rank. A full batch has ``batch_size``
    samples or, where that is unknown, as many as the first batch.
    """

    def __init__(self, layout: RankLayout, options: LoaderOptions) -> None:
        self.layout = layout
        self.options = options
        self.notes: list[str] = []
        """Changes to the loader and their reasons, one sentence each."""
        self.warnings: list[str] = []
        """Likely mistakes that are known before the first batch."""
        self.batch_size: int | None = None
        """Samples per rank in a full batch; None when unknown."""
        self.global_batch: int | None = None
        """Samples of a full batch over all ranks; None when unknown."""
        self.samples: int | None = None
        """Samples in an epoch over all ranks; None when unknown."""
        self.batches: int | None = None
        """Batches in an epoch, equal on all ranks; None when unknown."""
        self.endless = False
        """Whether an epoch never ends."""

    def epoch(self, number: int, *, skip: int = 0) -> Iterator[Pair]:
        """Yield the batches of epoch ``number``, on the device, without the first ``skip``."""
        options, device = self.options, self.layout.device
        pairs = self._pairs(number, skip)
        return prefetch_to_device(pairs, device, options.dtype, options.prefetch)

    @abstractmethod
    def _pairs(self, number: int, skip: int) -> Iterator[Pair]:
        """Yield the same batches on the host."""

    @abstractmethod
    def position(self, number: int, batches: int) -> dict[str, Any]:
        """Return the position in epoch ``number`` after so many batches, as plain values for `resume`."""

    @abstractmethod
    def resume(self, number: int, position: Mapping[str, Any]) -> None:
        """Set the position from which ``epoch(number, skip=position["batches"])`` continues.

        Raise UsageError where it cannot continue with every sample seen exactly once.
        """

    def batches_of(self, number: int) -> int | None:
        """Return the batches of epoch ``number``, including those before a resume; None when unknown."""
        return self.batches

    def total_of(self, index: int) -> int | None:
        """Return the samples of global batch ``index`` over all ranks; None when unknown."""
        return None

    def check(self) -> AuditReport | None:
        """Return the audit of the first epoch, None without one. Collective."""
        return None

    def close(self) -> None:
        """End worker processes and release the data."""
        return


def check_unit(position: Mapping[str, Any], unit: str) -> None:
    """Raise UsageError if a position was counted in another unit than this data."""
    if position["unit"] != unit:
        raise UsageError(
            f"The checkpoint is from the middle of an epoch that was counted in {position['unit']}, "
            f"but this data is counted in {unit}.\n"
            "Use the same kind of data, or a checkpoint from the end of an epoch."
        )
