"""Distribute the DataLoader of a map-style dataset, and check that all ranks hold the same dataset."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Subset

from allranks.errors import UsageError
from allranks.runtime.world.communicator import find_communicator, get_communicator
from allranks.train.data.audit import AuditLog, AuditReport, RankReport, compare, ranks_text
from allranks.train.data.base import DistributedLoader, LoaderOptions, Pair, RankLayout, check_unit
from allranks.train.data.batch_schedule import (
    BatchSchedule,
    EpochProgress,
    ListedSchedule,
    RankBatch,
)
from allranks.train.data.loader_copy import (
    RankBatchSampler,
    copy_loader,
    seed_workers,
    shut_down_workers,
)
from allranks.train.data.random_state import FreshRandomState, OwnRandomState
from allranks.train.data.sample_hash import (
    Digest,
    fingerprint,
    index_array,
    mix_seed,
    ordered_digest,
)
from allranks.train.data.sample_order import has_length

_MOST_INDICES = 1 << 20  # to record of a sampler without a length
_SECONDS = 0.5  # for reading samples to compare

_END: Any = object()


def _has_peers(size: int) -> bool:
    """Return whether there are other ranks and they are connected."""
    return size > 1 and find_communicator() is not None


def order_check(size: int) -> Any:
    """Return a check that a user's sampler returned the same indices on all ranks."""

    def check_order(own: Digest) -> None:
        if not _has_peers(size):
            return
        found = get_communicator(size).all_gather(own)
        odd = [rank for rank, other in enumerate(found) if other != found[0]]
        if odd:
            raise UsageError(
                f"The sampler returns other indices on rank {odd[0]} ({found[odd[0]].length} of them) "
                f"than on rank 0 ({found[0].length}). allranks divides them among the ranks, so it must "
                "return the same list everywhere: leave rank and world size out of the sampler, and "
                "give it a generator or seed that does not depend on the rank."
            )

    return check_order


class IndexedLoader(DistributedLoader):
    """Common parts of the loaders with a `BatchSchedule`: sizes, positions, the audit."""

    def __init__(
        self,
        schedule: BatchSchedule,
        loader: DataLoader,
        layout: RankLayout,
        options: LoaderOptions,
    ) -> None:
        super().__init__(layout, options)
        self.schedule = schedule
        self.batch_size, self.global_batch = schedule.batch_size, schedule.global_batch
        self.samples, self.batches = schedule.samples, schedule.batches
        self._audit_log: AuditLog | None = None
        self._audited = not options.audit
        self._audit_from = (0, 0)
        self._differs = ""
        if options.audit and _has_peers(layout.size):
            self._compare_datasets(loader)

    def _compare_datasets(self, loader: DataLoader) -> None:
        own, note = identify_dataset(loader.dataset, read=loader.num_workers == 0)
        self._differs = compare_identities(get_communicator(self.layout.size).all_gather(own))
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
        self.schedule.resume(number, EpochProgress(position["batches"], position["done"]))

    def _begin_audit(self, number: int, skip: int) -> AuditLog | None:
        """Return the audit log for the first epoch that runs, None for all others."""
        if self._audited:
            self._audit_log = None
            return None
        self._audited = True
        self._audit_log = AuditLog(limit=None if self.batches is not None else _MOST_INDICES)
        self._audit_from = (number, skip)
        return self._audit_log

    def check(self) -> AuditReport | None:
        own = self.rank_report()
        if own is None:
            return None
        self._audit_log = None
        report = compare(get_communicator(self.layout.size).all_gather(own))
        return AuditReport(False, self._differs) if report.ok and self._differs else report

    def rank_report(self) -> RankReport | None:
        """Return this rank's part of the audit, None without one.

        It covers the whole epoch where its order is known, including the samples before a resume.
        """
        audit_log = self._audit_log
        if audit_log is None:
            return None
        number, skip = self._audit_from
        schedule, rank = self.schedule, self.layout.rank
        if not isinstance(schedule, ListedSchedule) or schedule.range_of is None:
            return audit_log.report(rank, None)
        complete = skip + audit_log.batches == schedule.batches_of(number)
        if not complete or schedule.end_of(number) != schedule.range_of:
            return audit_log.report(rank, None)
        if skip and rank == 0:
            audit_log.before = schedule.order.indices(number)[: schedule.items(number, skip)]
        return audit_log.report(rank, schedule.range_of)


class MapStyleLoader(IndexedLoader):
    """Any DataLoader of a map-style dataset, with its own workers, collation and pinning."""

    def __init__(
        self,
        schedule: BatchSchedule,
        loader: DataLoader,
        layout: RankLayout,
        options: LoaderOptions,
    ) -> None:
        super().__init__(schedule, loader, layout, options)
        self._generator = torch.Generator()
        self._in_workers = loader.num_workers > 0
        self._batches = RankBatchSampler(schedule, options.seed, self._in_workers)
        changed: dict[str, Any] = {"batch_sampler": self._batches, "drop_last": False}
        if not getattr(loader, "in_order", True):
            changed["in_order"] = True
            self.notes.append(
                "in_order=False was set to True: the weights of batches depend on their order."
            )
        self._loader = copy_loader(loader, self._generator, layout.device, **changed)

    def _pairs(self, number: int, skip: int) -> Iterator[Pair]:
        seed_workers(self._generator, self.options.seed, self.layout.rank, number)
        take = self._batches.start(number, skip).popleft
        audit_log = self._begin_audit(number, skip)
        source = iter(self._loader)
        if not self._in_workers:
            source = self._seeded(source, skip)
        if audit_log is not None:
            yield from self._audited_pairs(source, take, audit_log)
            return
        for batch in source:
            yield batch, self._taken(take).weight

    def _seeded(self, source: Iterator[Any], number: int) -> Iterator[Any]:
        """Seed each batch that is read in this process, without changing the training's generators."""
        state = FreshRandomState()
        while True:
            with state.of(self._batches.seed_of(number)):
                batch = next(source, _END)
            if batch is _END:
                return
            number += 1
            yield batch

    def _audited_pairs(
        self, source: Iterator[Any], take: Any, audit_log: AuditLog
    ) -> Iterator[Pair]:
        for batch in source:
            entry = self._taken(take)
            weight = entry.weight
            audit_log.add(entry.mine, entry.whole, weight is None or weight.count > 0)
            yield batch, weight

    def _taken(self, take: Any) -> RankBatch:
        try:
            entry: RankBatch = take()
        except IndexError:
            raise UsageError(
                f"{type(self._loader).__name__} does not take its indices from its batch_sampler, so "
                "its batches cannot be divided among the ranks. Use a plain DataLoader, or pass the "
                "batches as an iterable with shard_iterable=True."
            ) from None
        return entry

    def close(self) -> None:
        shut_down_workers(self._loader)


class DatasetIdentity(NamedTuple):
    """Properties of a dataset that need only a few of its samples."""

    length: int | None
    chosen: int
    """Digest of the indices of a Subset, or of nested Subsets."""
    samples: tuple[int, ...]
    """Fingerprints of the first and the middle sample; empty when they could not be read."""


def identify_dataset(dataset: Any, read: bool) -> tuple[DatasetIdentity, str]:
    """Return the identity of a dataset, and a note when its samples could not be read.

    ``read`` False reads no samples: with workers, a file opened here would be shared by them.
    """
    length = len(dataset) if has_length(dataset) else None
    samples, note = _samples(dataset, length) if read and length else ((), "")
    return DatasetIdentity(length, _chosen(dataset), samples), note


def _chosen(dataset: Any) -> int:
    word = 0
    while isinstance(dataset, Subset):
        indices = index_array(np.asarray(dataset.indices))
        word = mix_seed(word, ordered_digest(indices).total)
        dataset = dataset.dataset
    return word


def _samples(dataset: Any, length: int) -> tuple[tuple[int, ...], str]:
    start = time.perf_counter()
    found: list[int] = []
    try:
        for index in dict.fromkeys((0, length // 2)):
            twice = {_sample(dataset, index) for _ in range(2)}
            if len(twice) > 1:  # augmented from a generator that we cannot seed
                return (), ""
            found += twice
            if time.perf_counter() - start > _SECONDS:
                break
    except Exception as error:  # noqa: BLE001  user code; training raises the same error later
        return (), f"samples were not compared over ranks: reading one failed with {error!r}."
    return tuple(found), ""


def _sample(dataset: Any, index: int) -> int:
    with OwnRandomState(index):
        return fingerprint(dataset[index])


def compare_identities(found: Sequence[DatasetIdentity]) -> str:
    """Return a warning if the datasets differ in content; raise if they differ in length or indices."""
    first = found[0]
    odd = [rank for rank, other in enumerate(found) if other.length != first.length]
    if odd:
        raise UsageError(
            f"The dataset has {first.length} samples on rank 0 and {found[odd[0]].length} on rank "
            f"{odd[0]}. Give every rank the whole dataset: allranks divides it among the ranks."
        )
    odd = [rank for rank, other in enumerate(found) if other.chosen != first.chosen]
    if odd:
        raise UsageError(
            f"{ranks_text([0, *odd])} hold different parts of the dataset, so samples would be seen "
            "twice or never. Split it the same on every rank, for example random_split(..., "
            "generator=torch.Generator().manual_seed(0)), and do not divide it by rank yourself."
        )
    return _contents(found)


def _contents(found: Sequence[DatasetIdentity]) -> str:
    least = min(len(other.samples) for other in found)
    odd = [r for r, other in enumerate(found) if other.samples[:least] != found[0].samples[:least]]
    if not odd:
        return ""
    return (
        f"{ranks_text([0, *odd])} hold datasets of the same length with different samples. Data made "
        "from random numbers needs the same seed on every rank; data read from files the same files."
    )
