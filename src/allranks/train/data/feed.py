"""``make_feed``: an ordinary loader becomes distributed, whatever it is.

map-style dataset, any sampler      LoaderFeed, or TensorFeed for plain tensors
map-style dataset, batch_sampler    LoaderFeed; its batches are dealt out in turn
IterableDataset, batch_size=None    StreamFeed
any iterable of batches             StreamFeed
dict of loaders                     DictFeed
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from allranks.errors import UsageError
from allranks.train.data.base import Feed, FeedOptions, Place, Share
from allranks.train.data.batched import Batched
from allranks.train.data.dict_loader import DictFeed, DictLoader
from allranks.train.data.indexed import LoaderFeed, agreement
from allranks.train.data.infinite import EndlessSampler, InfiniteTensorDataset
from allranks.train.data.order import order_of, sized
from allranks.train.data.schedule import Listed, Schedule, Streamed
from allranks.train.data.stream import StreamFeed
from allranks.train.data.strided import Strided
from allranks.train.data.tensors import TensorFeed, has_short_way

__all__ = ["Feed", "FeedOptions", "Share", "make_feed"]

_DEFAULT = FeedOptions()


def make_feed(
    loader: Any,
    *,
    rank: int,
    size: int,
    device: torch.device | str,
    options: FeedOptions = _DEFAULT,
) -> Feed:
    """A feed for ``loader`` on rank ``rank`` of ``size``. All ranks must call it together."""
    place = Place(rank, size, torch.device(device))
    if isinstance(loader, DictLoader):
        loader = loader.loaders
    if isinstance(loader, Mapping):
        feeds = {
            name: make_feed(one, rank=rank, size=size, device=device, options=options)
            for name, one in loader.items()
        }
        return DictFeed(feeds, place, options)
    if isinstance(loader, DataLoader):
        return _of_loader(loader, place, options)
    if not isinstance(loader, Iterable) or isinstance(loader, str | bytes | torch.Tensor):
        raise UsageError(
            f"Data of type {type(loader).__name__} is not a loader. Pass a DataLoader, a dict of "
            "DataLoaders, or an iterable of batches."
        )
    _refuse_global(place, options, "an iterable of ready batches")
    return _with_length(StreamFeed(loader, place, options), loader)


def _of_loader(loader: DataLoader, place: Place, options: FeedOptions) -> Feed:
    if isinstance(loader.dataset, InfiniteTensorDataset) and has_short_way(loader):
        return _endless(loader, place, options)
    if isinstance(loader.dataset, IterableDataset):
        return _iterable(loader, place, options)
    if loader.batch_sampler is None:
        return _unbatched(loader, place, options)
    schedule, note = _schedule(loader, place, options)
    short = has_short_way(loader) and not isinstance(schedule, Batched)
    feed = (TensorFeed if short else LoaderFeed)(schedule, loader, place, options)
    feed.notes[:0] = [note] if note and place.size > 1 else []
    if loader.drop_last and not options.training:
        feed.notes.append("drop_last is not heeded outside training: every sample is seen.")
    return feed


def _schedule(loader: DataLoader, place: Place, options: FeedOptions) -> tuple[Schedule, str]:
    batches, agree = loader.batch_sampler, agreement(place.size)
    where = (place.rank, place.size, agree)
    if type(batches) is not BatchSampler:
        divide = options.batch_size_is == "global"
        how = "divided among the ranks" if divide else "dealt out to the ranks in turn"
        note = f"the batches of {type(batches).__name__} are {how}."
        return Batched(batches, options.seed, divide, *where), note
    full = _global_batch(batches.batch_size, place, options)
    drop = bool(batches.drop_last) and options.training
    if not sized(batches.sampler):
        note = f"sampler {type(batches.sampler).__name__} has no length and is read as it goes."
        return Streamed(batches.sampler, options.seed, full, drop, *where), note
    order = order_of(loader, batches.sampler, options.seed, place.size, options.training)
    schedule = Listed(order, full, drop, *where)
    if order.samples and not schedule.batches:
        raise UsageError(
            f"drop_last leaves no batch: the dataset has {order.samples} samples, the global batch "
            f"{full}. Use a smaller batch_size, or drop_last=False."
        )
    return schedule, order.note


def _global_batch(batch_size: int, place: Place, options: FeedOptions) -> int:
    if options.batch_size_is == "per_rank":
        return batch_size * place.size
    if batch_size < place.size:
        raise UsageError(
            f"batch_size={batch_size} is meant for all ranks, but there are {place.size} of them. "
            f"Use a batch_size of at least {place.size}, or batch_size_is='per_rank'."
        )
    return batch_size


def _endless(loader: DataLoader, place: Place, options: FeedOptions) -> Feed:
    sampler = EndlessSampler(len(loader.dataset.tensors[0]))
    full = _global_batch(loader.batch_size or 1, place, options)
    agree = agreement(place.size)
    schedule = Streamed(sampler, options.seed, full, False, place.rank, place.size, agree)
    feed = TensorFeed(schedule, loader, place, options)
    feed.endless = True
    return feed


def _iterable(loader: DataLoader, place: Place, options: FeedOptions) -> Feed:
    size = loader.batch_size
    if size is None:
        _refuse_global(place, options, "a stream without batch_size")
    elif options.batch_size_is == "global" and size % place.size:
        raise UsageError(
            f"batch_size={size} of a stream cannot be divided evenly among {place.size} ranks. "
            f"Use a multiple of {place.size}, or batch_size_is='per_rank'."
        )
    elif options.batch_size_is == "global" and place.size > 1:
        size //= place.size
        loader = _smaller(loader, size)
    feed = StreamFeed(loader, place, options)
    feed.endless = isinstance(loader.dataset, InfiniteTensorDataset)
    if size is not None:
        feed.batch_size, feed.global_batch = size, size * place.size
    return _with_length(feed, loader)


def _smaller(loader: DataLoader, size: int) -> DataLoader:
    from allranks.train.data.rebuild import rebuilt

    batches = BatchSampler(loader.sampler, size, loader.drop_last)
    changed = {"batch_size": size, "batch_sampler": batches}
    return rebuilt(loader, torch.Generator(), torch.device("cpu"), **changed)


def _unbatched(loader: DataLoader, place: Place, options: FeedOptions) -> Feed:
    _refuse_global(place, options, "a loader with batch_size=None")
    sampler, order = loader.sampler, None
    if sized(sampler):
        order = order_of(loader, sampler, options.seed, place.size, options.training)
    strided = Strided(sampler, order, options.seed, place.rank, place.size)
    feed = StreamFeed(loader, place, options, strided)
    if order is not None:
        feed.batches = -(-order.samples // place.size)
    return feed


def _with_length(feed: StreamFeed, source: Any) -> Feed:
    """Alone, the length that a stream says it has; with other ranks nobody knows."""
    if feed.place.size == 1 and not feed.endless and sized(source):
        feed.batches = len(source)
    return feed


def _refuse_global(place: Place, options: FeedOptions, what: str) -> None:
    if options.batch_size_is == "global" and place.size > 1:
        raise UsageError(
            f"batch_size_is='global' cannot divide {what} among {place.size} ranks. Use "
            "batch_size_is='per_rank', with batches of the size that one rank should take."
        )
