"""The schedule of a user's batch sampler, whose batches are taken as they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from allranks.train.data.base import share_of
from allranks.train.data.digest import index_array, ordered_digest
from allranks.train.data.order import drawn, sized
from allranks.train.data.schedule import Agree, Round, Schedule, part


class Batched(Schedule):
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
        self._known = sized(sampler)
        if self._known:
            self.batches = -(-len(sampler) // self._step)

    def total_of(self, index: int) -> int | None:
        place = index - self._lead.batches
        return self._totals[place] if 0 <= place < len(self._totals) else None

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
            return drawn(self._sampler, self._seed, epoch, self._step, done)
        every = [batch for chunk in drawn(self._sampler, self._seed, epoch, 1) for batch in chunk]
        self._full = self._full or (len(every[0]) if every else None)
        self._agree(ordered_digest(index_array([index for batch in every for index in batch])))
        left = range(done, len(every), self._step)
        return iter([every[first : first + self._step] for first in left])

    def rounds(self, epoch: int, skip: int) -> Iterator[Round]:
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
