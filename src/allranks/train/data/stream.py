"""Feeds over streams: IterableDataset, loaders without batching, any iterable of batches.

Nobody knows beforehand how long a stream is. So the ranks agree on every step, one batch ahead and
while the step before computes: who still has a batch, and how many samples there are in all.
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
from allranks.train.data.digest import fingerprint, mixed_seed
from allranks.train.data.loader_copy import copy_loader, seed_workers, shut_down_workers
from allranks.train.data.random_state import OwnRandomState
from allranks.train.data.sample_order import StridedSampler

_SHARED_OUT = (
    "all ranks read the same stream, so its batches are dealt out in turn and every rank reads all of "
    "them; share it in the dataset by rank and worker to save the reading."
)
ITEMS, WHOLE, OWN = "items", "batches of the stream", "batches of each rank's own stream"
"""What positions are counted in."""


@dataclass
class _Asked:
    """A step under agreement: this rank's batch, its samples, the sums over ranks."""

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
        self._source = self._own_source(source)
        self._once = isinstance(source, Iterator)
        self._ran = False
        self._full: int | None = None
        self._audit_log: StreamAuditLog | None = None
        self._audited = not options.audit or layout.size == 1
        self._resumed: tuple[int, EpochProgress] = (-1, EpochProgress())
        self._alike = False
        """Whether the epoch was opened with the same random numbers on all ranks."""
        self._must_share = False
        if self._shard is True:
            self.notes.append(
                "the stream's batches are dealt out in turn; every rank reads them all."
            )
        self._communicator = get_communicator(layout.size)

    def _own_source(self, source: Any) -> Any:
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
        lead, unit = self._lead(number), self._unit
        each = 1 if unit == OWN else self.layout.size
        return {
            "unit": unit, "batches": batches, "done": lead.items + (batches - lead.batches) * each,
            "size": self.layout.size, "batch_size": self.batch_size, "alike": self._alike,
        }  # fmt: skip

    def resume(self, number: int, position: Mapping[str, Any]) -> None:
        """A stream that ranks read by themselves goes on with as many ranks and batches as large."""
        before, now = position.get("batch_size"), self.batch_size
        if before is not None and now is not None and before != now:
            raise UsageError(
                f"The checkpoint stands in the middle of a stream in batches of {before} for each rank, "
                f"and now they are of {now}: a stream has no numbers to find the place by.\n"
                f"Use a batch_size of {before} for each rank, or a checkpoint from the end of an epoch."
            )
        if position["unit"] == OWN and position["size"] != self.layout.size:
            raise UsageError(
                f"The checkpoint stands in the middle of a stream that {position['size']} ranks read by "
                f"themselves, and there are {self.layout.size} now.\n"
                f"Use {position['size']} ranks, or a checkpoint from the end of an epoch."
            )
        if self._shard == "auto" and position["size"] > 1:
            self._shard = position["unit"] == WHOLE  # as it was found out then
        self._must_share = self._shard == "auto" and position["unit"] == WHOLE
        if not self._must_share:
            check_unit(position, self._unit)
        self._alike = bool(position.get("alike"))
        self._resumed = (number, EpochProgress(position["batches"], position["done"]))

    def _lead(self, number: int) -> EpochProgress:
        return self._resumed[1] if self._resumed[0] == number else EpochProgress()

    def _pairs(self, number: int, skip: int) -> Iterator[Pair]:
        lead = self._lead(number)
        # All ranks must read the same where it is dealt out, or where that is to be found out.
        self._alike = self._shard is not False or (lead.batches > 0 and self._alike)
        rank = 0 if self._alike else self.layout.rank
        seed_workers(self._generator, self.options.seed, rank, number)
        if self._strided is not None:
            done = lead.items + (skip - lead.batches) * self.layout.size
            self._strided.start(number, done)
            skip, lead = 0, EpochProgress()
        self._begin_audit()
        own: OwnRandomState | None = None
        common: OwnRandomState | None = None
        if getattr(self._source, "num_workers", 0) == 0:
            own = OwnRandomState(mixed_seed(self.options.seed, number, self.layout.rank))
            common = OwnRandomState(mixed_seed(self.options.seed, number)) if self._alike else own
        reader = StreamReader(self._source, common, own)
        done = lead.items + skip - lead.batches
        return (
            self._alone(reader, done)
            if self.layout.size == 1
            else self._together(reader, lead, skip)
        )

    def _alone(self, reader: StreamReader, done: int) -> Iterator[Pair]:
        reader.leave_out(done)
        while (batch := reader.next()) is not END:
            count = count_samples(batch)
            full = self._learned(count)
            yield batch, None if count == full else weigh_batch(count, count, 1)
        self._ended(reader.last is not END)

    def _learned(self, total: int) -> int | None:
        """Samples of a full batch; unless the loader says it, from the first batch over all ranks."""
        if self._full is None:
            self._full = self.batch_size or (total // self.layout.size if total else None)
        return self._full

    def _ended(self, any_batch: bool) -> None:
        if not any_batch and self._once and self._ran:
            raise UsageError(
                "The training data is a generator, which can be read once: this epoch has no batches. "
                "Pass a list, a DataLoader or an object whose __iter__ starts again."
            )
        self._ran = True

    def _together(self, reader: StreamReader, lead: EpochProgress, skip: int) -> Iterator[Pair]:
        self._settle(reader)
        reader.leave_out(lead.items)
        for _ in range(skip - lead.batches):
            reader.next()
        ahead, first = self._ask(reader), True
        while True:
            step, (having, total, full) = ahead, [int(each) for each in ahead.wait_for_sums()]
            if not having:
                break
            if first and having < self.layout.size:
                self._refuse_empty(reader)
            self._learned(total)  # the same on all ranks, so that they agree on what is full
            ahead, first = self._ask(reader, step), False
            yield self._given(step, reader, total, full == self.layout.size)
        self._ended(not first or skip > 0)

    def _ask(self, reader: StreamReader, before: _Asked | None = None) -> _Asked:
        """Read the next batch and start the agreement on it."""
        batch = reader.next() if before is None or before.own else END
        count = count_samples(batch) if batch is not END else 0
        full = int(count == (self._full or self.batch_size))
        return _Asked(batch, count, self._communicator.start_sum([batch is not END, count, full]))

    def _given(self, step: _Asked, reader: StreamReader, total: int, full: bool) -> Pair:
        size, audit_log = self.layout.size, self._audit_log
        if not step.own:
            if audit_log is not None:
                audit_log.repeated += 1
            return reader.last, BatchWeight(0, 0.0, total)
        if audit_log is not None:
            audit_log.add(step.batch, step.count)
        return step.batch, None if full else weigh_batch(step.count, total, size)

    def _refuse_empty(self, reader: StreamReader) -> None:
        """A rank with nothing to repeat cannot keep in step: an error, and on all ranks the same."""
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

    def _settle(self, reader: StreamReader) -> None:
        """Decide whether to deal the batches out, for "auto" from the first batches of all ranks."""
        if self._alike and self._shard is False:
            reader.prints()  # as the epoch was opened before a resumption
        if self._shard == "auto":
            found = self._communicator.all_gather(reader.prints())
            if not any(found):
                return
            self._shard = all(other == found[0] for other in found)
            if self._shard:
                self.notes.append(_SHARED_OUT)
                if self.layout.rank == 0:
                    warnings.warn(f"allranks: {_SHARED_OUT}", stacklevel=2)
            else:
                self.notes.append("the stream differs over ranks and is left as it is.")
        if self._must_share and not self._shard:
            raise UsageError(
                "The checkpoint stands in the middle of a stream that one process read, and now each "
                "rank has a stream of its own.\nUse one process, or a checkpoint from the end of an epoch."
            )
        reader.turn(self.layout.rank, self.layout.size, bool(self._shard))

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


END: Any = object()
_LOOK = 2


class StreamReader:
    """One pass over a stream."""

    def __init__(
        self, source: Any, state: OwnRandomState | None, own: OwnRandomState | None = None
    ) -> None:
        """Read with the random numbers of ``state``, and once the stream is this rank's, of ``own``."""
        self._state: Any = state or nullcontext()
        self._own: Any = own or nullcontext()
        with self._state:
            self._items = iter(source)
        self._looked: deque[Any] = deque()
        self._every = 1
        self._wait = 0
        self.last: Any = END
        """The batch to repeat: the last of this rank, or else any that was read."""

    def prints(self) -> list[int]:
        """Fingerprints of the first batches, which stay to be read."""
        with self._state:
            self._looked.extend(islice(self._items, _LOOK))
        return [fingerprint(batch) for batch in self._looked]

    def turn(self, rank: int, size: int, shared: bool) -> None:
        """Whether to take the batches i % size == rank only, or (with an own stream) all."""
        self._every, self._wait = (size, rank) if shared else (1, 0)
        if not shared:
            self._state = self._own

    def leave_out(self, batches: int) -> None:
        """Read so many batches of the stream and forget them."""
        with self._state:
            for _ in range(batches):
                passed = self._pop()
                self.last = self.last if passed is END else passed

    def next(self) -> Any:
        """The next batch of this rank, or END."""
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
        return self._looked.popleft() if self._looked else next(self._items, END)
