"""Feeds over datasets with indices: any DataLoader of a map-style dataset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader

from allranks.errors import UsageError
from allranks.train.data.agree import connected, gathered
from allranks.train.data.audit import AuditReport, Ledger, RankReport, compare
from allranks.train.data.base import Feed, FeedOptions, Pair, Place, check_unit
from allranks.train.data.digest import Digest
from allranks.train.data.identity import compare_identities, identity
from allranks.train.data.random_state import FreshRandomState
from allranks.train.data.reader import END
from allranks.train.data.rebuild import RankBatches, end_workers, rebuilt, seed_workers
from allranks.train.data.schedule import Lead, Listed, Round, Schedule

_LEDGER = 1 << 20


def agreement(size: int) -> Any:
    """A check that a user's sampler drew the same indices on all ranks."""

    def agree(own: Digest) -> None:
        if not connected(size):
            return
        found = gathered(own, size)
        odd = [rank for rank, other in enumerate(found) if other != found[0]]
        if odd:
            raise UsageError(
                f"The sampler draws other indices on rank {odd[0]} ({found[odd[0]].length} of them) "
                f"than on rank 0 ({found[0].length}). It must draw the same list on every rank: "
                "allranks shares the list out itself. Leave rank and world size out of the sampler, "
                "and give it a generator or seed that does not depend on the rank."
            )

    return agree


class Indexed(Feed):
    """What all feeds with a schedule share: sizes, the audit, the comparison of datasets."""

    def __init__(
        self, schedule: Schedule, loader: DataLoader, place: Place, options: FeedOptions
    ) -> None:
        super().__init__(place, options)
        self.schedule = schedule
        self.batch_size, self.global_batch = schedule.batch_size, schedule.global_batch
        self.samples, self.batches = schedule.samples, schedule.batches
        self._ledger: Ledger | None = None
        self._audited = not options.audit
        self._audit_from = (0, 0)
        self._differs = ""
        if options.audit and connected(place.size):
            self._compare_datasets(loader)

    def _compare_datasets(self, loader: DataLoader) -> None:
        own, note = identity(loader.dataset, read=loader.num_workers == 0)
        self._differs = compare_identities(gathered(own, self.place.size))
        self.notes += [note] if note else []
        self.warnings += [self._differs] if self._differs else []

    def total_of(self, index: int) -> int | None:
        return self.schedule.total_of(index)

    def epoch(self, number: int, *, skip: int = 0) -> Iterator[Pair]:
        self.batches = self.schedule.batches_of(number)
        return super().epoch(number, skip=skip)

    def batches_of(self, number: int) -> int | None:
        return self.schedule.batches_of(number)

    def position(self, number: int, batches: int) -> dict[str, Any]:
        done = self.schedule.items(number, batches)
        return {"unit": self.schedule.unit, "batches": batches, "done": done}

    def resume(self, number: int, position: Mapping[str, Any]) -> None:
        check_unit(position, self.schedule.unit)
        self.schedule.resume(number, Lead(position["batches"], position["done"]))

    def _begin_audit(self, number: int, skip: int) -> Ledger | None:
        """A ledger for the first epoch that is run, None for all others."""
        if self._audited:
            self._ledger = None
            return None
        self._audited = True
        self._ledger = Ledger(limit=None if self.batches is not None else _LEDGER)
        self._audit_from = (number, skip)
        return self._ledger

    def check(self) -> AuditReport | None:
        if self._ledger is None:
            return None
        own = self._report(self._ledger)
        self._ledger = None
        report = compare(gathered(own, self.place.size))
        return AuditReport(False, self._differs) if report.ok and self._differs else report

    def _report(self, ledger: Ledger) -> RankReport:
        """Of the whole epoch where there is one order: what was done before a resumption counts."""
        number, skip = self._audit_from
        schedule, rank = self.schedule, self.place.rank
        if not isinstance(schedule, Listed) or schedule.range_of is None:
            return ledger.report(rank, None)
        complete = skip + ledger.batches == schedule.batches_of(number)
        if not complete or schedule.end_of(number) != schedule.range_of:
            return ledger.report(rank, None)
        if skip and rank == 0:
            ledger.before = schedule.order.indices(number)[: schedule.items(number, skip)]
        return ledger.report(rank, schedule.range_of)


class LoaderFeed(Indexed):
    """Any DataLoader, with its own workers, collation and pinning."""

    def __init__(
        self, schedule: Schedule, loader: DataLoader, place: Place, options: FeedOptions
    ) -> None:
        super().__init__(schedule, loader, place, options)
        self._generator = torch.Generator()
        self._in_workers = loader.num_workers > 0
        self._batches = RankBatches(schedule, options.seed, self._in_workers)
        changed: dict[str, Any] = {"batch_sampler": self._batches, "drop_last": False}
        if not getattr(loader, "in_order", True):
            changed["in_order"] = True
            self.notes.append(
                "in_order=False was set to True: the weights of batches need the order."
            )
        self._loader = rebuilt(loader, self._generator, place.device, **changed)

    def _pairs(self, number: int, skip: int) -> Iterator[Pair]:
        seed_workers(self._generator, self.options.seed, self.place.rank, number)
        take = self._batches.start(number, skip).popleft
        ledger = self._begin_audit(number, skip)
        source = iter(self._loader)
        if not self._in_workers:
            source = self._seeded(source, skip)
        if ledger is not None:
            yield from self._audited_pairs(source, take, ledger)
            return
        for batch in source:
            yield batch, self._taken(take).share

    def _seeded(self, source: Iterator[Any], number: int) -> Iterator[Any]:
        """Read here, each batch has random numbers of its own, too, and leaves the training's alone."""
        state = FreshRandomState()
        while True:
            with state.of(self._batches.seed_of(number)):
                batch = next(source, END)
            if batch is END:
                return
            number += 1
            yield batch

    def _audited_pairs(self, source: Iterator[Any], take: Any, ledger: Ledger) -> Iterator[Pair]:
        for batch in source:
            entry = self._taken(take)
            share = entry.share
            ledger.add(entry.mine, entry.whole, share is None or share.count > 0)
            yield batch, share

    def _taken(self, take: Any) -> Round:
        try:
            entry: Round = take()
        except IndexError:
            raise UsageError(
                f"{type(self._loader).__name__} does not take its indices from its batch_sampler, so "
                "its batches cannot be shared out. Use a plain DataLoader, or pass the batches as an "
                "iterable with shard_iterable=True."
            ) from None
        return entry

    def close(self) -> None:
        end_workers(self._loader)
