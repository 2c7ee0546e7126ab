"""Distribute streams: IterableDataset, loaders with batch_size=None, any iterable of batches.

The length of a stream is unknown in advance. So the ranks agree on every step, one batch ahead and while
the previous step computes: which ranks still have a batch, and the total number of samples.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader

from allranks.errors import UsageError
from allranks.runtime.world.communicator import get_communicator
from allranks.train.data.audit import AuditReport, StreamAuditLog, compare_streams, ranks_text
from allranks.train.data.base import (
    BatchWeight,
    DistributedLoader,
    LoaderOptions,
    Pair,
    RankLayout,
    check_unit,
    weigh_batch,
)
from allranks.train.data.batch_schedule import EpochProgress
from allranks.train.data.batch_transfer import count_samples
from allranks.train.data.loader_copy import copy_loader, seed_workers, shut_down_workers
from allranks.train.data.random_state import OwnRandomState
from allranks.train.data.sample_hash import fingerprint, mix_seed
from allranks.train.data.sample_order import StridedSampler

_SHARDED = (
    "all ranks read the same stream, so each takes its batches in turn and every rank reads all of "
    "them; shard the stream in the dataset by rank and worker to avoid that."
)
END: Any = object()
_PEEK = 2
ITEMS, WHOLE, OWN = "items", "batches of the stream", "batches of each rank's own stream"
"""Units of positions."""


class StreamReader:
    """One pass over a stream, which yields the batches of this rank."""

    def __init__(
        self, source: Any, state: OwnRandomState | None, own: OwnRandomState | None = None
    ) -> None:
        """Read with the random state ``state``, or with ``own`` once the stream is known to be this rank's."""
        self._state: Any = state or nullcontext()
        self._own: Any = own or nullcontext()
        with self._state:
            self._items = iter(source)
        self._peeked: deque[Any] = deque()
        self._every = 1
        self._wait = 0
        self.last: Any = END
        """The batch to repeat: the last of this rank, otherwise any that was read."""

    def first_fingerprints(self) -> list[int]:
        """Return the fingerprints of the first batches, which are read later all the same."""
        with self._state:
            self._peeked.extend(islice(self._items, _PEEK))
        return [fingerprint(batch) for batch in self._peeked]

    def set_turn(self, rank: int, size: int, shared: bool) -> None:
        """Take only the batches i with i % size == rank if ``shared``, otherwise all."""
        self._every, self._wait = (size, rank) if shared else (1, 0)
        if not shared:
            self._state = self._own

    def skip(self, batches: int) -> None:
        """Read so many batches of the stream and discard them."""
        with self._state:
            for _ in range(batches):
                passed = self._pop()
                self.last = self.last if passed is END else passed

    def next(self) -> Any:
        """Return the next batch of this rank, or END."""
        with self._state:
            for _ in range(self._wait):
                passed = self._pop()
                if passed is END:
                    return END
                self.last = passed if self.last is END else self.last
            self._wait = self._every - 1
            batch = self._pop()
        if batch is not END:
            self.last = batch
        return batch

    def _pop(self) -> Any:
        return self._peeked.popleft() if self._peeked else next(self._items, END)


@dataclass
class _PendingBatch:
    """A batch that the ranks are agreeing on: this rank's batch, its samples, the sums over ranks."""

    batch: Any
    count: int
    wait_for_sums: Callable[[], list[float]]

    @property
    def own(self) -> bool:
        return self.batch is not END


class StreamLoader(DistributedLoader):
    """A stream of batches. A rank whose stream has ended repeats its last batch with weight 0."""

    def __init__(
        self,
        source: Any,
        layout: RankLayout,
        options: LoaderOptions,
        strided: StridedSampler | None = None,
    ) -> None:
        super().__init__(layout, options)
        self._generator = torch.Generator()
        self._strided = strided
        self._shard: str | bool = False if strided or layout.size == 1 else options.shard_iterable
        self._source = self._copy_source(source)
        self._once = isinstance(source, Iterator)
        self._ran = False
        self._full: int | None = None
        self._audit_log: StreamAuditLog | None = None
        self._audited = not options.audit or layout.size == 1
        self._resumed: tuple[int, EpochProgress] = (-1, EpochProgress())
        self._alike = False
        """Whether the epoch was opened with the same random numbers on all ranks."""
        self._must_shard = False
        if self._shard is True:
            self.notes.append(
                "the ranks take the stream's batches in turn; every rank reads all of them."
            )
        self._communicator = get_communicator(layout.size)

    def _copy_source(self, source: Any) -> Any:
        if not isinstance(source, DataLoader):
            return source
        changed: dict[str, Any] = {}
        if self._strided is not None:
            changed["sampler"] = self._strided
        if self._shard is not False and not getattr(source, "in_order", True):
            changed["in_order"] = True
        return copy_loader(source, self._generator, self.layout.device, **changed)

    @property
    def _unit(self) -> str:
        if self._strided is not None:
            return ITEMS
        return WHOLE if self.layout.size == 1 or self._shard is True else OWN

    def position(self, number: int, batches: int) -> dict[str, Any]:
        done_before, unit = self._done_before(number), self._unit
        each = 1 if unit == OWN else self.layout.size
        return {
            "unit": unit, "batches": batches, "done": done_before.items + (batches - done_before.batches) * each,
            "size": self.layout.size, "batch_size": self.batch_size, "alike": self._alike,
        }  # fmt: skip

    def resume(self, number: int, position: Mapping[str, Any]) -> None:
        """Set the position; streams of each rank need the same number of ranks and batch size."""
        before, now = position.get("batch_size"), self.batch_size
        if before is not None and now is not None and before != now:
            raise UsageError(
                f"The checkpoint is from the middle of a stream with batch_size {before} per rank, but now "
                f"it is {now}: the position in a stream is counted in batches.\n"
                f"Use a batch_size of {before} per rank, or a checkpoint from the end of an epoch."
            )
        if position["unit"] == OWN and position["size"] != self.layout.size:
            raise UsageError(
                f"The checkpoint is from the middle of {position['size']} streams, one for each rank, but "
                f"the number of ranks is now {self.layout.size}.\n"
                f"Use {position['size']} ranks, or a checkpoint from the end of an epoch."
            )
        if self._shard == "auto" and position["size"] > 1:
            self._shard = position["unit"] == WHOLE  # as "auto" decided then
        self._must_shard = self._shard == "auto" and position["unit"] == WHOLE
        if not self._must_shard:
            check_unit(position, self._unit)
        self._alike = bool(position.get("alike"))
        self._resumed = (number, EpochProgress(position["batches"], position["done"]))

    def _done_before(self, number: int) -> EpochProgress:
        return self._resumed[1] if self._resumed[0] == number else EpochProgress()

    def _pairs(self, number: int, skip: int) -> Iterator[Pair]:
        done_before = self._done_before(number)
        # All ranks must read the same where they take turns, and until "auto" has decided.
        self._alike = self._shard is not False or (done_before.batches > 0 and self._alike)
        rank = 0 if self._alike else self.layout.rank
        seed_workers(self._generator, self.options.seed, rank, number)
        if self._strided is not None:
            done = done_before.items + (skip - done_before.batches) * self.layout.size
            self._strided.start(number, done)
            skip, done_before = 0, EpochProgress()
        self._begin_audit()
        own: OwnRandomState | None = None
        common: OwnRandomState | None = None
        if getattr(self._source, "num_workers", 0) == 0:
            own = OwnRandomState(mix_seed(self.options.seed, number, self.layout.rank))
            common = OwnRandomState(mix_seed(self.options.seed, number)) if self._alike else own
        reader = StreamReader(self._source, common, own)
        done = done_before.items + skip - done_before.batches
        return (
            self._on_one_rank(reader, done)
            if self.layout.size == 1
            else self._over_ranks(reader, done_before, skip)
        )

    def _on_one_rank(self, reader: StreamReader, done: int) -> Iterator[Pair]:
        reader.skip(done)
        while (batch := reader.next()) is not END:
            count = count_samples(batch)
            full = self._learn_batch_size(count)
            yield batch, None if count == full else weigh_batch(count, count, 1)
        self._check_not_empty(reader.last is not END)

    def _learn_batch_size(self, total: int) -> int | None:
        """Return the samples of a full batch: the loader's batch_size, or those of the first batch."""
        if self._full is None:
            self._full = self.batch_size or (total // self.layout.size if total else None)
        return self._full

    def _check_not_empty(self, any_batch: bool) -> None:
        if not any_batch and self._once and self._ran:
            raise UsageError(
                "The training data is a generator, which can be read only once: this epoch has no batches. "
                "Pass a list, a DataLoader or an object whose __iter__ starts again."
            )
        self._ran = True

    def _over_ranks(
        self, reader: StreamReader, done_before: EpochProgress, skip: int
    ) -> Iterator[Pair]:
        self._decide_sharding(reader)
        reader.skip(done_before.items)
        for _ in range(skip - done_before.batches):
            reader.next()
        ahead, first = self._read_ahead(reader), True
        while True:
            step, (having, total, full) = ahead, [int(each) for each in ahead.wait_for_sums()]
            if not having:
                break
            if first and having < self.layout.size:
                self._raise_if_empty(reader)
            self._learn_batch_size(
                total
            )  # the same on all ranks, so that they agree on what is full
            ahead, first = self._read_ahead(reader, step), False
            yield self._make_pair(step, reader, total, full == self.layout.size)
        self._check_not_empty(not first or skip > 0)

    def _read_ahead(
        self, reader: StreamReader, before: _PendingBatch | None = None
    ) -> _PendingBatch:
        """Read the next batch and start the agreement on it."""
        batch = reader.next() if before is None or before.own else END
        count = count_samples(batch) if batch is not END else 0
        full = int(count == (self._full or self.batch_size))
        return _PendingBatch(
            batch, count, self._communicator.start_sum([batch is not END, count, full])
        )

    def _make_pair(self, step: _PendingBatch, reader: StreamReader, total: int, full: bool) -> Pair:
        size, audit_log = self.layout.size, self._audit_log
        if not step.own:
            if audit_log is not None:
                audit_log.repeated += 1
            return reader.last, BatchWeight(0, 0.0, total)
        if audit_log is not None:
            audit_log.add(step.batch, step.count)
        return step.batch, None if full else weigh_batch(step.count, total, size)

    def _raise_if_empty(self, reader: StreamReader) -> None:
        """Raise the same error on all ranks if one has no batch that it could repeat."""
        empty = [
            r
            for r, has in enumerate(self._communicator.all_gather(reader.last is not END))
            if not has
        ]
        if empty:
            raise UsageError(
                f"{ranks_text(empty)} got no batch from the stream, but other ranks did. Give every "
                "rank at least one batch, or use shard_iterable=True with a stream that all ranks read."
            )

    def _decide_sharding(self, reader: StreamReader) -> None:
        """Decide whether ranks take turns: for "auto", if their first batches are the same."""
        if self._alike and self._shard is False:
            reader.first_fingerprints()  # as at the start of the epoch that is resumed
        if self._shard == "auto":
            found = self._communicator.all_gather(reader.first_fingerprints())
            if not any(found):
                return
            self._shard = all(other == found[0] for other in found)
            if self._shard:
                self.notes.append(_SHARDED)
                if self.layout.rank == 0:
                    warnings.warn(f"allranks: {_SHARDED}", stacklevel=2)
            else:
                self.notes.append("the ranks read different streams, so each takes all of its own.")
        if self._must_shard and not self._shard:
            raise UsageError(
                "The checkpoint is from the middle of a stream that one process read, but now each rank "
                "has another stream.\nUse one process, or a checkpoint from the end of an epoch."
            )
        reader.set_turn(self.layout.rank, self.layout.size, bool(self._shard))

    def _begin_audit(self) -> None:
        self._audit_log = None if self._audited else StreamAuditLog()
        self._audited = True

    def check(self) -> AuditReport | None:
        if self._audit_log is None:
            return None
        own = self._audit_log.report(self.layout.rank, self.layout.size)
        self._audit_log = None
        return compare_streams(self._communicator.all_gather(own))

    def close(self) -> None:
        shut_down_workers(self._source)
