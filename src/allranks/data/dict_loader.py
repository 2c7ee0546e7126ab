"""Several loaders at once: a dict of batches in every step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from allranks.data.audit import AuditReport
from allranks.data.base import Feed, FeedOptions, Pair, Place
from allranks.errors import UsageError

_RESTART = 1_000_003  # added to the epoch for each restart, so that it has an order of its own


class DictLoader:
    """``{name: loader}`` as one loader of ``{name: batch}``.

    The longest loader defines the epoch; shorter ones start again. A Trainer takes it apart and makes
    each loader distributed by itself.
    """

    def __init__(self, loaders: Mapping[str, Any]) -> None:
        if not loaders:
            raise UsageError("DictLoader needs at least one loader.")
        self.loaders = dict(loaders)

    def __len__(self) -> int:
        return max(len(loader) for loader in self.loaders.values())

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return cycled(
            {n: _again(loader) for n, loader in self.loaders.items()}, self.loaders.keys()
        )


def _again(loader: Any) -> Any:
    def opened(_restart: int) -> Iterator[Any]:
        return iter(loader)

    return opened


def cycled(openers: Mapping[str, Any], defining: Any) -> Iterator[dict[str, Any]]:
    """One item of each in every step, until each of the ``defining`` ones has been through once."""
    missing = set(defining)
    restarts = dict.fromkeys(openers, 0)
    running = {name: opener(0) for name, opener in openers.items()}
    while True:
        step = {}
        for name in openers:
            item = next(running[name], _END)
            if item is _END:
                missing.discard(name)
                if not missing:
                    return
                restarts[name] += 1
                running[name] = openers[name](restarts[name])
                item = next(running[name], _END)
                if item is _END:
                    raise UsageError(f"Loader '{name}' has no batches, or cannot be read twice.")
            step[name] = item
        yield step


_END = object()


class DictFeed(Feed):
    """A feed for each loader. The share of a step is that of the loader that defines the epoch."""

    def __init__(self, feeds: dict[str, Feed], place: Place, options: FeedOptions) -> None:
        super().__init__(place, options)
        self.feeds = feeds
        self.warnings = [text for feed in feeds.values() for text in feed.warnings]
        self.notes = [f"{name}: {note}" for name, feed in feeds.items() for note in feed.notes]
        finite = [name for name, feed in feeds.items() if not feed.endless]
        self._defining = finite or list(feeds)
        self.endless = not finite
        self._lead = max(self._defining, key=lambda name: feeds[name].batches or 0)
        lead = feeds[self._lead]
        self.batch_size, self.global_batch = lead.batch_size, lead.global_batch
        if all(feeds[name].batches is not None for name in finite) and finite:
            self.batches, self.samples = lead.batches, lead.samples

    def total_of(self, index: int) -> int | None:
        return self.feeds[self._lead].total_of(index)

    def epoch(self, number: int, *, skip: int = 0) -> Iterator[Pair]:
        return self._pairs(number, skip)

    def _pairs(self, number: int, skip: int) -> Iterator[Pair]:
        known = all(feed.batches or feed.endless for feed in self.feeds.values())
        at_once, read = (skip, 0) if known else (0, skip)
        left = [n for n in self._defining if (self.feeds[n].batches or at_once + 1) > at_once]
        openers = {name: _epochs(feed, number, at_once) for name, feed in self.feeds.items()}
        for step in islice(cycled(openers, left) if left else (), read, None):
            yield {name: pair[0] for name, pair in step.items()}, step[self._lead][1]

    def check(self) -> AuditReport | None:
        found = {name: feed.check() for name, feed in self.feeds.items()}
        reports = {name: report for name, report in found.items() if report is not None}
        if not reports:
            return None
        text = " ".join(f"{name}: {report.message}" for name, report in reports.items())
        return AuditReport(all(report.ok for report in reports.values()), text)

    def close(self) -> None:
        for feed in self.feeds.values():
            feed.close()


def _epochs(feed: Feed, number: int, skip: int) -> Any:
    """Opens the feed as it stands after ``skip`` steps, and again for each restart after that."""
    rounds, rest = divmod(skip, feed.batches) if feed.batches else (0, skip)

    def opened(restart: int) -> Iterator[Pair]:
        epoch = number + (rounds + restart) * _RESTART
        return feed.epoch(epoch, skip=0 if restart else rest)

    return opened
