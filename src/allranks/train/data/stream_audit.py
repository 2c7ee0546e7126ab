"""The audit of streams, which have no indices: fingerprints of the samples themselves."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from allranks.train.data.audit import AuditReport, ranks_text
from allranks.train.data.digest import Words, fingerprints

_SAMPLES = 1 << 16
_SECONDS = 1.0
_GATHERED = 1 << 18  # fingerprints that all ranks together send


class StreamReport(NamedTuple):
    """What one rank read from its stream."""

    rank: int
    batches: int
    repeated: int
    """Batches that only kept this rank in step: its stream had ended."""
    samples: int
    """Samples with a fingerprint."""
    different: int
    """How many of these are unlike each other."""
    lowest: Words
    """The smallest fingerprints: the same choice on every rank, whatever the order of reading."""
    cut: bool
    """Whether there were more."""


class StreamLedger:
    """Fingerprints of the samples of the first epoch, bounded in number and in time."""

    def __init__(self) -> None:
        self.batches = 0
        self.repeated = 0
        self._words: list[Words] = []
        self._samples = 0
        self._spent = 0.0

    def add(self, batch: Any, samples: int) -> None:
        """One batch that this rank read."""
        self.batches += 1
        if self._samples >= _SAMPLES or self._spent >= _SECONDS:
            return
        start = time.perf_counter()
        words = fingerprints(batch, samples)
        if words is not None:
            self._words.append(words)
            self._samples += len(words)
        self._spent += time.perf_counter() - start

    def report(self, rank: int, size: int) -> StreamReport:
        """For `compare_streams`."""
        words = np.concatenate(self._words) if self._words else np.zeros(0, np.uint64)
        unique = np.unique(words)
        keep = max(256, _GATHERED // size)
        return StreamReport(
            rank, self.batches, self.repeated, len(words), len(unique), unique[:keep],
            len(unique) > keep,
        )  # fmt: skip


def compare_streams(reports: Sequence[StreamReport]) -> AuditReport:
    """Whether ranks read the same samples, and whether some had fewer batches."""
    uneven = _uneven(reports)
    twins = _twins(reports)
    if twins:
        text = (
            f"{ranks_text(twins)} read the same samples: the stream is not shared out. "
            "Set shard_iterable=True, or share it in the dataset by rank and worker."
        )
        return AuditReport(False, f"{text} {uneven}".strip())
    samples = sum(r.samples for r in reports)
    return AuditReport(True, f"{samples} samples compared: no rank read those of another. {uneven}"
                       .strip())  # fmt: skip


def _uneven(reports: Sequence[StreamReport]) -> str:
    few = [r for r in reports if r.repeated]
    if not few:
        return ""
    said = "; ".join(
        f"rank {r.rank} had {r.repeated} batch{'es' if r.repeated > 1 else ''} fewer and repeated "
        "its last one with weight 0"
        for r in few[:4]
    )
    more = f"; and {len(few) - 4} more ranks" if len(few) > 4 else ""
    return f"The streams were uneven: {said}{more}."


def _twins(reports: Sequence[StreamReport]) -> list[int]:
    """Ranks that share more samples than the data repeats by itself."""
    if len(reports) < 2:
        return []
    below = min((r.lowest[-1] for r in reports if r.cut), default=np.uint64(2**64 - 1))
    parts = [r.lowest[r.lowest <= below] for r in reports]
    words, counts = np.unique(np.concatenate(parts), return_counts=True)
    shared = words[counts > 1]
    read = max(1, sum(r.samples for r in reports))
    repeats = 1 - sum(r.different for r in reports) / read
    owners = [
        report.rank
        for report, part in zip(reports, parts, strict=True)
        if len(part) and np.isin(part, shared).mean() > 0.01 + 2 * repeats
    ]
    return owners if len(owners) > 1 else []
