"""Which indices a rank takes in each batch, and what they weigh.

Global batch b is the samples [bG, (b+1)G) of the epoch's order; each rank takes a contiguous part of
it. So the ranks together see what one rank with batch G sees. An epoch that goes on after a resumption
has a `Lead`: what was done before, perhaps in batches of another size; its batches follow from there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from allranks.train.data.base import BatchWeight, weigh_batch
from allranks.train.data.digest import Array, Digest, index_array, ordered_digest
from allranks.train.data.sample_order import EndlessSampler, SampleOrder, draw_items, has_length

Agree = Callable[[Digest], None]


class RankBatch(NamedTuple):
    """One step: this rank's indices, those of all ranks, and the share of this rank."""

    mine: Array
    whole: Array
    weight: BatchWeight | None


def part(total: int, size: int, rank: int) -> tuple[int, int]:
    """Where rank's part of ``total`` samples begins and ends: 10 over 4 ranks is 3, 3, 2, 2."""
    base, extra = divmod(total, size)
    start = rank * base + min(rank, extra)
    return start, start + base + (rank < extra)


def short_part(total: int, size: int, rank: int) -> tuple[int, int]:
    """A part of a short last batch: two samples or none, since a batch norm fails over one.

    3 over 2 ranks is 3, 0; 5 over 4 is 3, 2, 0, 0.
    """
    users = min(size, max(1, total // 2))
    return part(total, users, rank) if rank < users else (total, total)


class EpochProgress(NamedTuple):
    """What of an epoch was done before a resumption."""

    batches: int = 0
    items: int = 0
    """In the schedule's unit: samples, or batches of a user's batch sampler."""


class BatchSchedule(ABC):
    """The rounds of one rank, epoch by epoch."""

    unit = "samples"
    """What positions are counted in."""

    batch_size: int | None = None
    global_batch: int | None = None
    samples: int | None = None
    batches: int | None = None
    range_of: int | None = None
    """n when a whole epoch must be exactly 0 … n-1."""

    def __init__(self, rank: int, size: int, agree: Agree) -> None:
        self.rank = rank
        self.size = size
        self._agree = agree
        self._resumed: tuple[int, EpochProgress] = (-1, EpochProgress())
        self._lead = EpochProgress()  # of the epoch under way

    @abstractmethod
    def rounds(self, epoch: int, skip: int) -> Iterator[RankBatch]:
        """The rounds of an epoch after the first ``skip``."""

    def resume(self, epoch: int, lead: EpochProgress) -> None:
        """Let this epoch go on after ``lead``."""
        self._resumed = (epoch, lead)

    def lead(self, epoch: int) -> EpochProgress:
        """What of this epoch was done before a resumption."""
        return self._resumed[1] if self._resumed[0] == epoch else EpochProgress()

    def _begin(self, epoch: int, skip: int) -> tuple[EpochProgress, int]:
        """The lead of an epoch that is to start, and how many rounds to leave out after it."""
        lead = self.lead(epoch)
        self._lead = lead if skip >= lead.batches else EpochProgress()
        return self._lead, skip - self._lead.batches

    def items(self, epoch: int, batches: int) -> int:
        """The position after so many batches of an epoch."""
        lead = self.lead(epoch)
        return lead.items + (batches - lead.batches) * (self.global_batch or 1)

    def batches_of(self, epoch: int) -> int | None:
        """Batches of this epoch, those before a resumption included."""
        return self.batches

    def total_of(self, index: int) -> int | None:
        """Samples of global batch ``index``."""
        return None

    def _sized_batches(self, full: int) -> None:
        start, stop = part(full, self.size, self.rank)
        self.batch_size, self.global_batch = stop - start, full
        self._even = None if full % self.size == 0 else weigh_batch(stop - start, full, self.size)

    def _span(self, begin: int, total: int) -> tuple[int, int, BatchWeight | None]:
        """This rank's part of ``total`` samples from ``begin`` on; a rank without any repeats some."""
        full = total == self.global_batch or (self.global_batch or 1) < 2 * self.size
        start, stop = (part if full else short_part)(total, self.size, self.rank)
        if stop == start:
            return begin, begin + min(total, 1 if full else 2), weigh_batch(0, total, self.size)
        weight = self._even if total == self.global_batch else None
        if total != self.global_batch:
            weight = weigh_batch(stop - start, total, self.size)
        return begin + start, begin + stop, weight


class ListedSchedule(BatchSchedule):
    """An order that is known as a whole."""

    def __init__(
        self, order: SampleOrder, full: int, drop: bool, rank: int, size: int, agree: Agree
    ) -> None:
        super().__init__(rank, size, agree)
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
        lead = self.lead(epoch)
        return lead.batches + self._batches(self.order.samples - lead.items)

    def items(self, epoch: int, batches: int) -> int:
        """An epoch that is over stands at its end, also where its last samples were dropped."""
        over = batches >= self.batches_of(epoch)
        return self.order.samples if over else super().items(epoch, batches)

    def end_of(self, epoch: int) -> int:
        """Samples of this epoch that are seen in all; fewer than there are where some are dropped."""
        return self._end(self.lead(epoch))

    def _end(self, lead: EpochProgress) -> int:
        left, full = self.order.samples - lead.items, self.global_batch or 1
        return lead.items + min(left, self._batches(left) * full)

    def total_of(self, index: int) -> int | None:
        full, lead = self.global_batch or 1, self._lead
        begin = lead.items + (index - lead.batches) * full
        return max(0, min(full, self._end(lead) - begin))

    def spans(
        self, epoch: int, samples: int, skip: int
    ) -> Iterator[tuple[int, int, int, BatchWeight | None]]:
        """Where each global batch begins in the order, this rank's part of it, and its share."""
        lead, skip = self._begin(epoch, skip)
        full = self.global_batch or 1
        start, stop, weight = self._span(0, full)
        first = lead.items + skip * full
        whole = lead.items + (samples - lead.items) // full * full
        for begin in range(first, whole, full):
            yield begin, begin + start, begin + stop, weight
        if first <= whole < samples and not self._drop:
            yield whole, *self._span(whole, samples - whole)

    def listed(self, epoch: int) -> Array:
        """The epoch's order; a user's sampler must have drawn the same on every rank."""
        order = self.order.indices(epoch)
        if not self.order.own:
            self._agree(ordered_digest(order))
        return order

    def rounds(self, epoch: int, skip: int) -> Iterator[RankBatch]:
        order, full = self.listed(epoch), self.global_batch or 1
        for begin, start, stop, weight in self.spans(epoch, len(order), skip):
            yield RankBatch(order[start:stop], order[begin : begin + full], weight)


class StreamedSchedule(BatchSchedule):
    """A sampler of unknown or endless length, read one global batch at a time."""

    def __init__(
        self, sampler: Any, seed: int, full: int, drop: bool, rank: int, size: int, agree: Agree
    ) -> None:
        super().__init__(rank, size, agree)
        self._sampler = sampler
        self._seed = seed
        self._drop = drop
        self._sized_batches(full)

    def total_of(self, index: int) -> int | None:
        return self.global_batch if isinstance(self._sampler, EndlessSampler) else None

    def rounds(self, epoch: int, skip: int) -> Iterator[RankBatch]:
        lead, skip = self._begin(epoch, skip)
        full = self.global_batch or 1
        done = lead.items + skip * full
        for number, chunk in enumerate(draw_items(self._sampler, self._seed, epoch, full, done)):
            whole = index_array(chunk)
            if number == 0:
                self._agree(ordered_digest(whole))
            if self._drop and len(chunk) < full:
                continue
            start, stop, weight = self._span(0, len(chunk))
            yield RankBatch(whole[start:stop], whole, weight)


class BatchSamplerSchedule(BatchSchedule):
    """A user's batch sampler: its batches are dealt out in turn, or each is divided ("global")."""

    unit = "batches of the batch sampler"

    def __init__(
        self, sampler: Any, seed: int, divide: bool, rank: int, size: int, agree: Agree
    ) -> None:
        super().__init__(rank, size, agree)
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
        layout = index - self._lead.batches
        return self._totals[layout] if 0 <= layout < len(self._totals) else None

    def items(self, epoch: int, batches: int) -> int:
        lead = self.lead(epoch)
        done = lead.items + (batches - lead.batches) * self._step
        return min(done, len(self._sampler)) if self._known else done

    def batches_of(self, epoch: int) -> int | None:
        lead = self.lead(epoch)
        if not self._known:
            return None
        return lead.batches - (lead.items - len(self._sampler)) // self._step

    def _hands(self, epoch: int, done: int) -> Iterator[list[Any]]:
        """The batches of each round, over all ranks, without the first ``done`` batches."""
        if not self._known:
            self._agree(ordered_digest(index_array([])))
            return draw_items(self._sampler, self._seed, epoch, self._step, done)
        every = [
            batch for chunk in draw_items(self._sampler, self._seed, epoch, 1) for batch in chunk
        ]
        self._full = self._full or (len(every[0]) if every else None)
        self._agree(ordered_digest(index_array([index for batch in every for index in batch])))
        left = range(done, len(every), self._step)
        return iter([every[first : first + self._step] for first in left])

    def rounds(self, epoch: int, skip: int) -> Iterator[RankBatch]:
        lead, skip = self._begin(epoch, skip)
        hands = self._hands(epoch, lead.items)
        if self._known:
            hands = iter(every := list(hands))
            self._totals = [sum(len(batch) for batch in hand) for hand in every]
        for number, hand in enumerate(hands):
            if self._full is None:
                self._full = len(hand[0])
            if number >= skip:
                yield self._divided(hand[0]) if self._divide else self._dealt(hand)

    def _divided(self, batch: Any) -> RankBatch:
        whole = index_array(batch)
        start, stop = part(len(whole), self.size, self.rank)
        full = len(whole) == self._full and len(whole) % self.size == 0
        weight = None if full else weigh_batch(stop - start, len(whole), self.size)
        return RankBatch(whole[start:stop] if stop > start else whole[:1], whole, weight)

    def _dealt(self, hand: list[Any]) -> RankBatch:
        whole = index_array([index for batch in hand for index in batch])
        if self.rank < len(hand):
            mine = index_array(hand[self.rank])
            if len(hand) == self.size and all(len(batch) == self._full for batch in hand):
                return RankBatch(mine, whole, None)
            return RankBatch(mine, whole, weigh_batch(len(mine), len(whole), self.size))
        # The whole first batch, not one sample: batch normalisation needs more than one.
        return RankBatch(index_array(hand[0]), whole, weigh_batch(0, len(whole), self.size))
