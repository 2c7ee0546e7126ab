"""Audit the first epoch: compare the samples of all ranks, by index or, for streams, by content.

The comparisons are pure functions of the ranks' reports, so that all ranks reach the same verdict.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from allranks.train.data.sample_hash import Array, Digest, Words, digest, fingerprints

_SAMPLES = 1 << 16
_SECONDS = 1.0
_GATHERED = 1 << 18  # fingerprints that all ranks together send


@dataclass(frozen=True)
class AuditReport:
    """The result of auditing the first epoch."""

    ok: bool
    message: str


class RankReport(NamedTuple):
    """The samples that one rank yielded from a map-style dataset."""

    rank: int
    batches: int
    given: Digest
    """Indices that this rank yielded and that count."""
    expected: Digest
    """Indices of the same global batches, as this rank computed them."""


@dataclass
class AuditLog:
    """Every index that this rank yielded."""

    limit: int | None = None
    """Most indices to record: an endless sampler must not fill the memory."""
    batches: int = 0
    before: Array | None = None
    """On one rank: indices that were yielded before the checkpoint that was resumed."""
    _given: list[Array] = field(default_factory=list)
    _whole: list[Array] = field(default_factory=list)
    _seen: int = 0

    def add(self, mine: Array, whole: Array, counts: bool) -> None:
        """Record a batch: the indices of this rank, those of the global batch, and whether it counts."""
        if self.limit is not None and self._seen >= self.limit:
            return
        self.batches += 1
        self._seen += len(whole)
        self._whole.append(whole)
        if counts:
            self._given.append(mine)

    def report(self, rank: int, range_of: int | None) -> RankReport:
        """Return the report for `compare`. ``range_of`` n: the whole epoch must be exactly 0 … n-1."""
        whole = self._whole if range_of is None else [np.arange(range_of)]
        given = self._given if self.before is None else [self.before, *self._given]
        return RankReport(rank, self.batches, digest(given), digest(whole))


def compare(reports: Sequence[RankReport]) -> AuditReport:
    """Check that the ranks together yielded each expected index once."""
    for verdict in (_orders(reports), _batches(reports), _same(reports), _coverage(reports)):
        if verdict:
            return AuditReport(False, verdict)
    expected, ranks = reports[0].expected.length, len(reports)
    over = "1 rank" if ranks == 1 else f"{ranks} ranks"
    return AuditReport(True, f"{expected} samples over {over}: each was seen exactly once.")


def _orders(reports: Sequence[RankReport]) -> str:
    odd = [r.rank for r in reports if r.expected != reports[0].expected]
    if not odd or len({r.batches for r in reports}) > 1:
        return ""
    return (
        f"{ranks_text(odd)} had another order of the samples than rank 0, so some samples are seen "
        "twice and others never. The sampler must return the same indices on every rank."
    )


def _batches(reports: Sequence[RankReport]) -> str:
    most = max(r.batches for r in reports)
    few = [r for r in reports if r.batches < most]
    if not few:
        return ""
    lacks = ", ".join(f"rank {r.rank} had {r.batches}" for r in few[:4])
    return f"Ranks had different numbers of batches: {lacks}, the others {most}."


def _same(reports: Sequence[RankReport]) -> str:
    groups: dict[Digest, list[int]] = {}
    for report in reports:
        if report.given.length:
            groups.setdefault(report.given, []).append(report.rank)
    twins = next((ranks for ranks in groups.values() if len(ranks) > 1), None)
    # Equal indices on several ranks are intended where a sampler draws with replacement.
    if twins is None or _together(reports) == reports[0].expected:
        return ""
    return f"{ranks_text(twins)} got the same samples: each sample must go to one rank only."


def _together(reports: Sequence[RankReport]) -> Digest:
    xor = 0
    for report in reports:
        xor ^= report.given.xor
    count = sum(r.given.length for r in reports)
    return Digest(count, sum(r.given.total for r in reports) % 2**64, xor)


def _coverage(reports: Sequence[RankReport]) -> str:
    found, expected = _together(reports), reports[0].expected
    if found == expected:
        return ""
    if found.length < expected.length:
        missing = expected.length - found.length
        return f"{missing} of {expected.length} samples were never seen by any rank."
    if found.length > expected.length:
        twice = found.length - expected.length
        return f"{twice} samples were seen twice: {found.length} were yielded, {expected.length} exist."
    return f"Of {expected.length} samples, some were seen twice and the same number never."


def ranks_text(ranks: Sequence[int]) -> str:
    """Return "Rank 3", "Ranks 0 and 1" or "Ranks 0, 1, 2 and 5 more"."""
    if len(ranks) == 1:
        return f"Rank {ranks[0]}"
    shown = [str(rank) for rank in ranks]
    if len(shown) > 4:
        shown = [*shown[:3], f"{len(ranks) - 3} more"]
    return f"Ranks {', '.join(shown[:-1])} and {shown[-1]}"


class StreamReport(NamedTuple):
    """The samples that one rank read from its stream."""

    rank: int
    batches: int
    repeated: int
    """Batches repeated with weight 0 because the stream of this rank had ended."""
    samples: int
    """Samples with a fingerprint."""
    different: int
    """Number of distinct fingerprints."""
    lowest: Words
    """The smallest fingerprints: the same selection on every rank, in whatever order they were read."""
    cut: bool
    """Whether `lowest` leaves some out."""


class StreamAuditLog:
    """Fingerprints of the samples of the first epoch, limited in number and in time."""

    def __init__(self) -> None:
        self.batches = 0
        self.repeated = 0
        self._words: list[Words] = []
        self._samples = 0
        self._spent = 0.0

    def add(self, batch: Any, samples: int) -> None:
        """Record a batch that this rank read."""
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
        """Return the report for `compare_streams`."""
        words = np.concatenate(self._words) if self._words else np.zeros(0, np.uint64)
        unique = np.unique(words)
        keep = max(256, _GATHERED // size)
        return StreamReport(
            rank, self.batches, self.repeated, len(words), len(unique), unique[:keep],
            len(unique) > keep,
        )  # fmt: skip


def compare_streams(reports: Sequence[StreamReport]) -> AuditReport:
    """Check whether ranks read the same samples and whether some had fewer batches."""
    uneven = _uneven(reports)
    twins = _twins(reports)
    if twins:
        text = (
            f"{ranks_text(twins)} read the same samples: the stream is not sharded. "
            "Set shard_iterable=True, or shard it in the dataset by rank and worker."
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
    """Return the ranks that have more samples in common than the data itself repeats."""
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
