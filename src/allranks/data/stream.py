"""Feeds over streams: IterableDataset, loaders without batching, any iterable of batches.

Nobody knows beforehand how long a stream is. So the ranks agree on every step, one batch ahead and
while the step before computes: who still has a batch, and how many samples there are in all.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader

from allranks.data.agree import Sum, connected, gathered
from allranks.data.audit import AuditReport, ranks_text
from allranks.data.base import Feed, FeedOptions, Pair, Place, Share, share_of
from allranks.data.digest import mixed_seed
from allranks.data.move import count_samples
from allranks.data.random_state import OwnRandomState
from allranks.data.reader import END, Reader
from allranks.data.rebuild import end_workers, rebuilt, seed_workers
from allranks.data.schedule import Strided
from allranks.data.stream_audit import StreamLedger, compare_streams
from allranks.errors import UsageError, WorldError

_SHARED_OUT = (
    "all ranks read the same stream, so its batches are dealt out in turn and every rank reads all of "
    "them; share it in the dataset by rank and worker to save the reading."
)


@dataclass
class _Asked:
    """A step under agreement: this rank's batch, its samples, the sums over ranks."""

    batch: Any
    count: int
    sums: Sum

    @property
    def own(self) -> bool:
        return self.batch is not END


class StreamFeed(Feed):
    """A stream of batches. A rank whose stream has ended repeats its last batch with weight 0."""

    def __init__(
        self, source: Any, place: Place, options: FeedOptions, strided: Strided | None = None
    ) -> None:
        super().__init__(place, options)
        self._generator = torch.Generator()
        self._strided = strided
        self._shard: str | bool = False if strided or place.size == 1 else options.shard_iterable
        self._source = self._own_source(source)
        self._once = isinstance(source, Iterator)
        self._ran = False
        self._full: int | None = None
        self._ledger: StreamLedger | None = None
        self._audited = not options.audit or place.size == 1
        if self._shard is True:
            self.notes.append(
                "the stream's batches are dealt out in turn; every rank reads them all."
            )
        if place.size > 1 and not connected(place.size):
            raise WorldError(
                f"A stream shared by {place.size} ranks needs torch.distributed, which is not "
                "initialised. Call allranks.init() first."
            )

    def _own_source(self, source: Any) -> Any:
        if not isinstance(source, DataLoader):
            return source
        changed: dict[str, Any] = {}
        if self._strided is not None:
            changed["sampler"] = self._strided
        if self._shard is not False and not getattr(source, "in_order", True):
            changed["in_order"] = True
        return rebuilt(source, self._generator, self.place.device, **changed)

    def _pairs(self, number: int, skip: int) -> Iterator[Pair]:
        alike = self._shard is not False  # all ranks must then read the same
        rank = 0 if alike else self.place.rank
        seed_workers(self._generator, self.options.seed, rank, number)
        if self._strided is not None:
            self._strided.start(number, skip)
            skip = 0
        self._begin_audit()
        if self.place.size == 1:
            return self._alone(skip)
        here = getattr(self._source, "num_workers", 0) == 0
        state = OwnRandomState(mixed_seed(self.options.seed, number)) if alike and here else None
        return self._together(state, skip)

    def _alone(self, skip: int) -> Iterator[Pair]:
        source, any_batch = iter(self._source), False
        for _ in range(skip):
            any_batch = next(source, END) is not END
        for batch in source:
            any_batch = True
            count = count_samples(batch)
            full = self._learned(count)
            yield batch, None if count == full else share_of(count, count, 1)
        self._ended(any_batch)

    def _learned(self, total: int) -> int | None:
        """Samples of a full batch; unless the loader says it, from the first batch over all ranks."""
        if self._full is None:
            self._full = self.batch_size or (total // self.place.size if total else None)
        return self._full

    def _ended(self, any_batch: bool) -> None:
        if not any_batch and self._once and self._ran:
            raise UsageError(
                "The training data is a generator, which can be read once: this epoch has no batches. "
                "Pass a list, a DataLoader or an object whose __iter__ starts again."
            )
        self._ran = True

    def _together(self, state: OwnRandomState | None, skip: int) -> Iterator[Pair]:
        reader = Reader(self._source, state)
        self._settle(reader)
        for _ in range(skip):
            reader.next()
        ahead, first = self._ask(reader), True
        while True:
            step, (having, total, full) = ahead, ahead.sums.wait()
            if not having:
                break
            if first and having < self.place.size:
                self._refuse_empty(reader)
            self._learned(total)  # the same on all ranks, so that they agree on what is full
            ahead, first = self._ask(reader, step), False
            yield self._given(step, reader, total, full == self.place.size)
        self._ended(not first or skip > 0)

    def _ask(self, reader: Reader, before: _Asked | None = None) -> _Asked:
        """Read the next batch and start the agreement on it."""
        batch = reader.next() if before is None or before.own else END
        count = count_samples(batch) if batch is not END else 0
        full = int(count == (self._full or self.batch_size))
        return _Asked(batch, count, Sum([batch is not END, count, full]))

    def _given(self, step: _Asked, reader: Reader, total: int, full: bool) -> Pair:
        size, ledger = self.place.size, self._ledger
        if not step.own:
            if ledger is not None:
                ledger.repeated += 1
            return reader.last, Share(0, 0.0, total)
        if ledger is not None:
            ledger.add(step.batch, step.count)
        return step.batch, None if full else share_of(step.count, total, size)

    def _refuse_empty(self, reader: Reader) -> None:
        """A rank with nothing to repeat cannot keep in step: an error, and on all ranks the same."""
        empty = [
            r for r, has in enumerate(gathered(reader.last is not END, self.place.size)) if not has
        ]
        if empty:
            raise UsageError(
                f"{ranks_text(empty)} got no batch from the stream, but other ranks did. Give every "
                "rank at least one batch, or use shard_iterable=True with a stream that all ranks read."
            )

    def _settle(self, reader: Reader) -> None:
        """Decide whether to deal the batches out, for "auto" from the first batches of all ranks."""
        if self._shard == "auto":
            found = gathered(reader.prints(), self.place.size)
            if not any(found):
                return
            self._shard = all(other == found[0] for other in found)
            if self._shard:
                self.notes.append(_SHARED_OUT)
                if self.place.rank == 0:
                    warnings.warn(f"allranks: {_SHARED_OUT}", stacklevel=2)
            else:
                self.notes.append("the stream differs over ranks and is left as it is.")
        reader.turn(self.place.rank, self.place.size, bool(self._shard))

    def _begin_audit(self) -> None:
        self._ledger = None if self._audited else StreamLedger()
        self._audited = True

    def check(self) -> AuditReport | None:
        if self._ledger is None:
            return None
        own = self._ledger.report(self.place.rank, self.place.size)
        self._ledger = None
        return compare_streams(gathered(own, self.place.size))

    def close(self) -> None:
        end_workers(self._source)
