"""Which indices a rank takes in each batch, and what they weigh.

Global batch b is the samples [bG, (b+1)G) of the epoch's order; each rank takes a contiguous part of
it. So the ranks together see what one rank with batch G sees.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from allranks.data.base import Share, share_of
from allranks.data.digest import Array, Digest, index_array, ordered_digest
from allranks.data.infinite import EndlessSampler
from allranks.data.order import Order, drawn, sized

Agree = Callable[[Digest], None]


class Round(NamedTuple):
    """One step: this rank's indices, those of all ranks, and the share of this rank."""

    mine: Array
    whole: Array
    share: Share | None


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


class Schedule(ABC):
    """The rounds of one rank, epoch by epoch."""

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

    @abstractmethod
    def rounds(self, epoch: int, skip: int) -> Iterator[Round]:
        """The rounds of an epoch after the first ``skip``."""

    def total_of(self, index: int) -> int | None:
        """Samples of global batch ``index``."""
        return None

    def _sized_batches(self, full: int) -> None:
        start, stop = part(full, self.size, self.rank)
        self.batch_size, self.global_batch = stop - start, full
        self._even = None if full % self.size == 0 else share_of(stop - start, full, self.size)

    def _span(self, begin: int, total: int) -> tuple[int, int, Share | None]:
        """This rank's part of ``total`` samples from ``begin`` on; a rank without any repeats some."""
        full = total == self.global_batch or (self.global_batch or 1) < 2 * self.size
        start, stop = (part if full else short_part)(total, self.size, self.rank)
        if stop == start:
            return begin, begin + min(total, 1 if full else 2), share_of(0, total, self.size)
        share = self._even if total == self.global_batch else None
        if total != self.global_batch:
            share = share_of(stop - start, total, self.size)
        return begin + start, begin + stop, share


class Listed(Schedule):
    """An order that is known as a whole."""

    def __init__(
        self, order: Order, full: int, drop: bool, rank: int, size: int, agree: Agree
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

    def total_of(self, index: int) -> int | None:
        full, samples = self.global_batch or 1, self.samples or 0
        return max(0, min(full, samples - index * full))

    def spans(self, samples: int, skip: int) -> Iterator[tuple[int, int, Share | None]]:
        """Where this rank's part of each global batch begins and ends in the order, and its share."""
        full = self.global_batch or 1
        start, stop, share = self._span(0, full)
        whole = samples // full
        for begin in range(skip * full, whole * full, full):
            yield begin + start, begin + stop, share
        if skip <= whole < self._batches(samples):
            yield self._span(whole * full, samples - whole * full)

    def listed(self, epoch: int) -> Array:
        """The epoch's order; a user's sampler must have drawn the same on every rank."""
        order = self.order.indices(epoch)
        if not self.order.own:
            self._agree(ordered_digest(order))
        return order

    def rounds(self, epoch: int, skip: int) -> Iterator[Round]:
        order, full = self.listed(epoch), self.global_batch or 1
        begin = skip * full
        for start, stop, share in self.spans(len(order), skip):
            yield Round(order[start:stop], order[begin : begin + full], share)
            begin += full


class Streamed(Schedule):
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

    def rounds(self, epoch: int, skip: int) -> Iterator[Round]:
        full = self.global_batch or 1
        chunks = drawn(self._sampler, self._seed, epoch, full)
        for number, chunk in enumerate(chunks):
            if number == 0:
                self._agree(ordered_digest(index_array(chunk)))
            if number < skip or (self._drop and len(chunk) < full):
                continue
            whole = index_array(chunk)
            start, stop, share = self._span(0, len(chunk))
            yield Round(whole[start:stop], whole, share)


class Batched(Schedule):
    """A user's batch sampler: its batches are dealt out in turn, or each is divided ("global")."""

    def __init__(
        self, sampler: Any, seed: int, divide: bool, rank: int, size: int, agree: Agree
    ) -> None:
        super().__init__(rank, size, agree)
        self._sampler = sampler
        self._seed = seed
        self._divide = divide
        self._totals: list[int] = []
        self._full: int | None = None
        self._known = sized(sampler)
        if self._known:
            self.batches = len(sampler) if divide else -(-len(sampler) // size)

    def total_of(self, index: int) -> int | None:
        return self._totals[index] if index < len(self._totals) else None

    def _hands(self, epoch: int) -> Iterator[list[Any]]:
        """The batches of each round, over all ranks."""
        step = 1 if self._divide else self.size
        hands = drawn(self._sampler, self._seed, epoch, step)
        first: Any = []
        if self._known:
            hands = iter(every := list(hands))
            first = [index for hand in every for batch in hand for index in batch]
            self._totals = [sum(len(batch) for batch in hand) for hand in every]
        self._agree(ordered_digest(index_array(first)))
        return hands

    def rounds(self, epoch: int, skip: int) -> Iterator[Round]:
        for number, hand in enumerate(self._hands(epoch)):
            if self._full is None:
                self._full = len(hand[0])
            if number >= skip:
                yield self._divided(hand[0]) if self._divide else self._dealt(hand)

    def _divided(self, batch: Any) -> Round:
        whole = index_array(batch)
        start, stop = part(len(whole), self.size, self.rank)
        full = len(whole) == self._full and len(whole) % self.size == 0
        share = None if full else share_of(stop - start, len(whole), self.size)
        return Round(whole[start:stop] if stop > start else whole[:1], whole, share)

    def _dealt(self, hand: list[Any]) -> Round:
        whole = index_array([index for batch in hand for index in batch])
        if self.rank < len(hand):
            mine = index_array(hand[self.rank])
            if len(hand) == self.size and all(len(batch) == self._full for batch in hand):
                return Round(mine, whole, None)
            return Round(mine, whole, share_of(len(mine), len(whole), self.size))
        # The whole first batch, not one sample: batch normalisation needs more than one.
        return Round(index_array(hand[0]), whole, share_of(0, len(whole), self.size))


class Strided:
    """For loaders without batching, whose every item is a batch: rank takes items i % W == rank."""

    def __init__(self, sampler: Any, order: Order | None, seed: int, rank: int, size: int) -> None:
        self._sampler, self._order, self._seed = sampler, order, seed
        self._rank, self._size = rank, size
        self._epoch = self._skip = 0

    def start(self, epoch: int, skip: int) -> None:
        """Which epoch the next iteration is for, and how many of its items to leave out."""
        self._epoch, self._skip = epoch, skip

    def __len__(self) -> int:
        if self._order is None:
            raise TypeError("the sampler has no length")
        return len(range(self._rank, self._order.samples, self._size))

    def __iter__(self) -> Iterator[Any]:
        if self._order is not None:
            mine = self._order.indices(self._epoch)[self._rank :: self._size]
            yield from np.asarray(mine[self._skip :]).tolist()
            return
        for number, hand in enumerate(drawn(self._sampler, self._seed, self._epoch, self._size)):
            if number >= self._skip and self._rank < len(hand):
                yield hand[self._rank]
