"""The indices and the weight of each rank in each global batch.

Global batch b is the samples [bG, (b+1)G) of the epoch's order; each rank takes a contiguous part of
it. So the ranks together see what one rank with batch G sees. A resumed epoch has an `EpochProgress`: the
samples done before, perhaps in batches of another size; its batches continue from there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from allranks.train.data.base import BatchWeight, weigh_batch
from allranks.train.data.sample_hash import Array, Digest, index_array, ordered_digest
from allranks.train.data.sample_order import EndlessSampler, SampleOrder, draw_items, has_length

OrderCheck = Callable[[Digest], None]


class RankBatch(NamedTuple):
    """One global batch: this rank's indices, those of all ranks, and the weight of this rank."""

    mine: Array
    whole: Array
    weight: BatchWeight | None


def part(total: int, size: int, rank: int) -> tuple[int, int]:
    """Return the start and end of a rank's part of ``total`` samples: 10 over 4 ranks is 3, 3, 2, 2."""
    base, extra = divmod(total, size)
    start = rank * base + min(rank, extra)
    return start, start + base + (rank < extra)


def short_part(total: int, size: int, rank: int) -> tuple[int, int]:
    """Return a rank's part of a short last batch: at least two samples or none.

    A batch norm fails on a single sample. 3 over 2 ranks is 3, 0; 5 over 4 is 3, 2, 0, 0.
    """
    users = min(size, max(1, total // 2))
    return part(total, users, rank) if rank < users else (total, total)


class EpochProgress(NamedTuple):
    """The part of an epoch that was done before a resume."""

    batches: int = 0
    items: int = 0
    """In the schedule's unit: samples, or batches of a user's batch sampler."""


class BatchSchedule(ABC):
    """The batches of one rank, epoch by epoch."""

    unit = "samples"
    """The unit of positions."""

    batch_size: int | None = None
    global_batch: int | None = None
    samples: int | None = None
    batches: int | None = None
    range_of: int | None = None
    """n when a whole epoch must be exactly 0 … n-1."""

    def __init__(self, rank: int, size: int, check_order: OrderCheck) -> None:
        self.rank = rank
        self.size = size
        self._check_order = check_order
        self._resumed: tuple[int, EpochProgress] = (-1, EpochProgress())
        self._done_before = EpochProgress()  # of the epoch under way

    @abstractmethod
    def batches_from(self, epoch: int, skip: int) -> Iterator[RankBatch]:
        """Yield the batches of an epoch without the first ``skip``."""

    def resume(self, epoch: int, done_before: EpochProgress) -> None:
        """Let this epoch continue after ``done_before``."""
        self._resumed = (epoch, done_before)

    def done_before(self, epoch: int) -> EpochProgress:
        """Return the part of this epoch that was done before a resume."""
        return self._resumed[1] if self._resumed[0] == epoch else EpochProgress()

    def _begin(self, epoch: int, skip: int) -> tuple[EpochProgress, int]:
        """Start an epoch; return what was done before a resume, and the batches to skip after it."""
        done_before = self.done_before(epoch)
        self._done_before = done_before if skip >= done_before.batches else EpochProgress()
        return self._done_before, skip - self._done_before.batches

    def items(self, epoch: int, batches: int) -> int:
        """Return the position after so many batches of an epoch."""
        done_before = self.done_before(epoch)
        return done_before.items + (batches - done_before.batches) * (self.global_batch or 1)

    def batches_of(self, epoch: int) -> int | None:
        """Return the batches of this epoch, including those before a resume."""
        return self.batches

    def total_of(self, index: int) -> int | None:
        """Return the samples of global batch ``index``."""
        return None

    def _sized_batches(self, full: int) -> None:
        start, stop = part(full, self.size, self.rank)
        self.batch_size, self.global_batch = stop - start, full
        self._even = None if full % self.size == 0 else weigh_batch(stop - start, full, self.size)

    def _span(self, begin: int, total: int) -> tuple[int, int, BatchWeight | None]:
        """Return this rank's part of ``total`` samples from ``begin``; a rank without any repeats some."""
        full = total == self.global_batch or (self.global_batch or 1) < 2 * self.size
        start, stop = (part if full else short_part)(total, self.size, self.rank)
        if stop == start:
            return begin, begin + min(total, 1 if full else 2), weigh_batch(0, total, self.size)
        weight = self._even if total == self.global_batch else None
        if total != self.global_batch:
            weight = weigh_batch(stop - start, total, self.size)
        return begin + start, begin + stop, weight


class ListedSchedule(BatchSchedule):
    """The schedule of an order that is known in advance."""

    def __init__(
        self,
        order: SampleOrder,
        full: int,
        drop: bool,
        rank: int,
        size: int,
        check_order: OrderCheck,
    ) -> None:
        super().__init__(rank, size, check_order)
        self.order = order
        self._drop = drop
        self._sized_batches(full)
        self.batches = self._batches(order.samples)
        self.samples = min(order.samples, self.batches * full)
        if order.own and self.samples == order.samples:
            self.range_of = order.samples

    def _batches(self, samples: int) -> int:
        full = self.global_batch or 1
        return samples // full if self._drop else -(-samples // full)

    def batches_of(self, epoch: int) -> int:
        done_before = self.done_before(epoch)
        return done_before.batches + self._batches(self.order.samples - done_before.items)

    def items(self, epoch: int, batches: int) -> int:
        """Return the position; that of a finished epoch is its end, also where samples were dropped."""
        over = batches >= self.batches_of(epoch)
        return self.order.samples if over else super().items(epoch, batches)

    def end_of(self, epoch: int) -> int:
        """Return how many samples of this epoch are seen: fewer than there are where some are dropped."""
        return self._end(self.done_before(epoch))

    def _end(self, done_before: EpochProgress) -> int:
        left, full = self.order.samples - done_before.items, self.global_batch or 1
        return done_before.items + min(left, self._batches(left) * full)

    def total_of(self, index: int) -> int | None:
        full, done_before = self.global_batch or 1, self._done_before
        begin = done_before.items + (index - done_before.batches) * full
        return max(0, min(full, self._end(done_before) - begin))

    def spans(
        self, epoch: int, samples: int, skip: int
    ) -> Iterator[tuple[int, int, int, BatchWeight | None]]:
        """Yield the start of each global batch in the order, this rank's part of it, and its weight."""
        done_before, skip = self._begin(epoch, skip)
        full = self.global_batch or 1
        start, stop, weight = self._span(0, full)
        first = done_before.items + skip * full
        whole = done_before.items + (samples - done_before.items) // full * full
        for begin in range(first, whole, full):
            yield begin, begin + start, begin + stop, weight
        if first <= whole < samples and not self._drop:
            yield whole, *self._span(whole, samples - whole)

    def listed(self, epoch: int) -> Array:
        """Return the epoch's order, and check that a user's sampler returned the same on every rank."""
        order = self.order.indices(epoch)
        if not self.order.own:
            self._check_order(ordered_digest(order))
        return order

    def batches_from(self, epoch: int, skip: int) -> Iterator[RankBatch]:
        order, full = self.listed(epoch), self.global_batch or 1
        for begin, start, stop, weight in self.spans(epoch, len(order), skip):
            yield RankBatch(order[start:stop], order[begin : begin + full], weight)


class StreamedSchedule(BatchSchedule):
    """The schedule of a sampler without a known length, read one global batch at a time."""

    def __init__(
        self,
        sampler: Any,
        seed: int,
        full: int,
        drop: bool,
        rank: int,
        size: int,
        check_order: OrderCheck,
    ) -> None:
        super().__init__(rank, size, check_order)
        self._sampler = sampler
        self._seed = seed
        self._drop = drop
        self._sized_batches(full)

    def total_of(self, index: int) -> int | None:
        return self.global_batch if isinstance(self._sampler, EndlessSampler) else None

    def batches_from(self, epoch: int, skip: int) -> Iterator[RankBatch]:
        done_before, skip = self._begin(epoch, skip)
        full = self.global_batch or 1
        done = done_before.items + skip * full
        for number, chunk in enumerate(draw_items(self._sampler, self._seed, epoch, full, done)):
            whole = index_array(chunk)
            if number == 0:
                self._check_order(ordered_digest(whole))
            if self._drop and len(chunk) < full:
                continue
            start, stop, weight = self._span(0, len(chunk))
            yield RankBatch(whole[start:stop], whole, weight)


class BatchSamplerSchedule(BatchSchedule):
    """The schedule of a user's batch sampler: its batches go to the ranks in turn, or are divided."""

    unit = "batches of the batch sampler"

    def __init__(
        self, sampler: Any, seed: int, divide: bool, rank: int, size: int, check_order: OrderCheck
    ) -> None:
        super().__init__(rank, size, check_order)
        self._sampler = sampler
        self._seed = seed
        self._divide = divide
        self._step = 1 if divide else size
        self._totals: list[int] = []
        self._full: int | None = None
        self._known = has_length(sampler)
        if self._known:
            self.batches = -(-len(sampler) // self._step)

    def total_of(self, index: int) -> int | None:
        layout = index - self._done_before.batches
        return self._totals[layout] if 0 <= layout < len(self._totals) else None

    def items(self, epoch: int, batches: int) -> int:
        done_before = self.done_before(epoch)
        done = done_before.items + (batches - done_before.batches) * self._step
        return min(done, len(self._sampler)) if self._known else done

    def batches_of(self, epoch: int) -> int | None:
        done_before = self.done_before(epoch)
        if not self._known:
            return None
        return done_before.batches - (done_before.items - len(self._sampler)) // self._step

    def _draw_steps(self, epoch: int, done: int) -> Iterator[list[Any]]:
        """Yield the sampler's batches of each step, over all ranks, without the first ``done``."""
        if not self._known:
            self._check_order(ordered_digest(index_array([])))
            return draw_items(self._sampler, self._seed, epoch, self._step, done)
        every = [
            batch for chunk in draw_items(self._sampler, self._seed, epoch, 1) for batch in chunk
        ]
        self._full = self._full or (len(every[0]) if every else None)
        self._check_order(
            ordered_digest(index_array([index for batch in every for index in batch]))
        )
        left = range(done, len(every), self._step)
        return iter([every[first : first + self._step] for first in left])

    def batches_from(self, epoch: int, skip: int) -> Iterator[RankBatch]:
        done_before, skip = self._begin(epoch, skip)
        hands = self._draw_steps(epoch, done_before.items)
        if self._known:
            hands = iter(every := list(hands))
            self._totals = [sum(len(batch) for batch in hand) for hand in every]
        for number, hand in enumerate(hands):
            if self._full is None:
                self._full = len(hand[0])
            if number >= skip:
                yield self._take_part(hand[0]) if self._divide else self._take_turn(hand)

    def _take_part(self, batch: Any) -> RankBatch:
        whole = index_array(batch)
        start, stop = part(len(whole), self.size, self.rank)
        full = len(whole) == self._full and len(whole) % self.size == 0
        weight = None if full else weigh_batch(stop - start, len(whole), self.size)
        return RankBatch(whole[start:stop] if stop > start else whole[:1], whole, weight)

    def _take_turn(self, hand: list[Any]) -> RankBatch:
        whole = index_array([index for batch in hand for index in batch])
        if self.rank < len(hand):
            mine = index_array(hand[self.rank])
            if len(hand) == self.size and all(len(batch) == self._full for batch in hand):
                return RankBatch(mine, whole, None)
            return RankBatch(mine, whole, weigh_batch(len(mine), len(whole), self.size))
        # The whole first batch, not one sample: batch normalisation needs more than one.
        return RankBatch(index_array(hand[0]), whole, weigh_batch(0, len(whole), self.size))
