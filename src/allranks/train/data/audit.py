"""The coverage audit: what each rank handed out, compared over ranks.

The comparisons are pure functions of the ranks' reports, so that all ranks reach the same verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from allranks.train.data.digest import Array, Digest, digest


@dataclass(frozen=True)
class AuditReport:
    """The verdict of the first epoch."""

    ok: bool
    message: str


class RankReport(NamedTuple):
    """What one rank handed out of an indexed dataset."""

    rank: int
    batches: int
    given: Digest
    """Indices that this rank handed out and that count."""
    expected: Digest
    """Indices of the same global batches, as this rank knows them."""


@dataclass
class Ledger:
    """Every index this rank handed out, written down as the batch leaves the feed."""

    limit: int | None = None
    """Stop writing after so many indices: a sampler without end must not fill the memory."""
    batches: int = 0
    before: Array | None = None
    """On one rank: indices that were handed out before a resumption."""
    _given: list[Array] = field(default_factory=list)
    _whole: list[Array] = field(default_factory=list)
    _seen: int = 0

    def add(self, mine: Array, whole: Array, counts: bool) -> None:
        """One batch: the indices of this rank, those of the global batch, and whether it counts."""
        if self.limit is not None and self._seen >= self.limit:
            return
        self.batches += 1
        self._seen += len(whole)
        self._whole.append(whole)
        if counts:
            self._given.append(mine)

    def report(self, rank: int, range_of: int | None) -> RankReport:
        """For `compare`. ``range_of`` n: the epoch was whole and must be exactly 0 … n-1."""
        whole = self._whole if range_of is None else [np.arange(range_of)]
        given = self._given if self.before is None else [self.before, *self._given]
        return RankReport(rank, self.batches, digest(given), digest(whole))


def compare(reports: Sequence[RankReport]) -> AuditReport:
    """Whether the ranks together handed out each expected index once; if not, the mistake."""
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
        "twice and others never. The sampler must draw the same indices on every rank."
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
    # A single index drawn by several ranks is a sampler with replacement, and meant.
    if twins is None or _together(reports) == reports[0].expected:
        return ""
    return f"{ranks_text(twins)} were given the same samples: every sample must go to one rank."


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
        return f"{twice} samples were seen twice: {found.length} handed out of {expected.length}."
    return f"Of {expected.length} samples some were seen twice and as many never."


def ranks_text(ranks: Sequence[int]) -> str:
    """ "Rank 3", "Ranks 0 and 1", "Ranks 0, 1, 2 and 5 more"."""
    if len(ranks) == 1:
        return f"Rank {ranks[0]}"
    shown = [str(rank) for rank in ranks]
    if len(shown) > 4:
        shown = [*shown[:3], f"{len(ranks) - 3} more"]
    return f"Ranks {', '.join(shown[:-1])} and {shown[-1]}"
