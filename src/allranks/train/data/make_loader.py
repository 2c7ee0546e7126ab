"""``distribute_loader``: make any loader distributed.

map-style dataset, any sampler      MapStyleLoader, or TensorLoader for plain tensors
map-style dataset, batch_sampler    MapStyleLoader; its batches go to the ranks in turn
IterableDataset, batch_size=None    StreamLoader
any iterable of batches             StreamLoader
dict of loaders                     DistributedDictLoader
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from allranks.errors import UsageError
from allranks.train.data.base import DistributedLoader, LoaderOptions, RankLayout
from allranks.train.data.batch_schedule import (
    BatchSamplerSchedule,
    BatchSchedule,
    ListedSchedule,
    StreamedSchedule,
)
from allranks.train.data.dict_loader import DictLoader, DistributedDictLoader
from allranks.train.data.iterable_style import StreamLoader
from allranks.train.data.map_style import MapStyleLoader, order_check
from allranks.train.data.sample_order import EndlessSampler, StridedSampler, has_length, order_of
from allranks.train.data.tensor_loader import InfiniteTensorDataset, TensorLoader, is_plain_tensors

_DEFAULT = LoaderOptions()


def distribute_loader(
    loader: Any,
    *,
    rank: int,
    size: int,
    device: torch.device | str,
    options: LoaderOptions = _DEFAULT,
) -> DistributedLoader:
    """Return the distributed loader of this rank. Collective."""
    layout = RankLayout(rank, size, torch.device(device))
    if isinstance(loader, DictLoader):
        loader = loader.loaders
    if isinstance(loader, Mapping):
        distributed = {
            name: distribute_loader(one, rank=rank, size=size, device=device, options=options)
            for name, one in loader.items()
        }
        return DistributedDictLoader(distributed, layout, options)
    if isinstance(loader, DataLoader):
        return _of_loader(loader, layout, options)
    if not isinstance(loader, Iterable) or isinstance(loader, str | bytes | torch.Tensor):
        raise UsageError(
            f"Data of type {type(loader).__name__} is not a loader. Pass a DataLoader, a dict of "
            "DataLoaders, or an iterable of batches."
        )
    _refuse_global(layout, options, "an iterable of ready batches")
    return _with_length(StreamLoader(loader, layout, options), loader)


def _of_loader(loader: DataLoader, layout: RankLayout, options: LoaderOptions) -> DistributedLoader:
    if isinstance(loader.dataset, InfiniteTensorDataset) and is_plain_tensors(loader):
        return _endless(loader, layout, options)
    if isinstance(loader.dataset, IterableDataset):
        return _iterable(loader, layout, options)
    if loader.batch_sampler is None:
        return _unbatched(loader, layout, options)
    schedule, note = _schedule(loader, layout, options)
    short = is_plain_tensors(loader) and not isinstance(schedule, BatchSamplerSchedule)
    distributed = (TensorLoader if short else MapStyleLoader)(schedule, loader, layout, options)
    distributed.notes[:0] = [note] if note and layout.size > 1 else []
    if loader.drop_last and not options.training:
        distributed.notes.append("drop_last is ignored outside training: every sample is seen.")
    return distributed


def _schedule(
    loader: DataLoader, layout: RankLayout, options: LoaderOptions
) -> tuple[BatchSchedule, str]:
    batches, check_order = loader.batch_sampler, order_check(layout.size)
    where = (layout.rank, layout.size, check_order)
    if type(batches) is not BatchSampler:
        divide = options.batch_size_is == "global"
        how = "divided among the ranks" if divide else "assigned to the ranks in turn"
        note = f"the batches of {type(batches).__name__} are {how}."
        return BatchSamplerSchedule(batches, options.seed, divide, *where), note
    full = _global_batch(batches.batch_size, layout, options)
    drop = bool(batches.drop_last) and options.training
    if not has_length(batches.sampler):
        note = f"sampler {type(batches.sampler).__name__} has no length and is read batch by batch."
        return StreamedSchedule(batches.sampler, options.seed, full, drop, *where), note
    order = order_of(loader, batches.sampler, options.seed, layout.size, options.training)
    schedule = ListedSchedule(order, full, drop, *where)
    if order.samples and not schedule.batches:
        raise UsageError(
            f"drop_last=True leaves no batch: the dataset has {order.samples} samples, a global batch "
            f"{full}. Use a smaller batch_size, or drop_last=False."
        )
    return schedule, order.note


def _global_batch(batch_size: int, layout: RankLayout, options: LoaderOptions) -> int:
    if options.batch_size_is == "per_rank":
        return batch_size * layout.size
    if batch_size < layout.size:
        raise UsageError(
            f"batch_size={batch_size} with batch_size_is='global' is less than the {layout.size} ranks. "
            f"Use a batch_size of at least {layout.size}, or batch_size_is='per_rank'."
        )
    return batch_size


def _endless(loader: DataLoader, layout: RankLayout, options: LoaderOptions) -> DistributedLoader:
    sampler = EndlessSampler(len(loader.dataset.tensors[0]))
    full = _global_batch(loader.batch_size or 1, layout, options)
    check_order = order_check(layout.size)
    schedule = StreamedSchedule(
        sampler, options.seed, full, False, layout.rank, layout.size, check_order
    )
    distributed = TensorLoader(schedule, loader, layout, options)
    distributed.endless = True
    return distributed


def _iterable(loader: DataLoader, layout: RankLayout, options: LoaderOptions) -> DistributedLoader:
    size = loader.batch_size
    if size is None:
        _refuse_global(layout, options, "a stream without batch_size")
    elif options.batch_size_is == "global" and size % layout.size:
        raise UsageError(
            f"batch_size={size} of a stream cannot be divided evenly among {layout.size} ranks. "
            f"Use a multiple of {layout.size}, or batch_size_is='per_rank'."
        )
    elif options.batch_size_is == "global" and layout.size > 1:
        size //= layout.size
        loader = _smaller(loader, size)
    distributed = StreamLoader(loader, layout, options)
    distributed.endless = isinstance(loader.dataset, InfiniteTensorDataset)
    if size is not None:
        distributed.batch_size, distributed.global_batch = size, size * layout.size
    return _with_length(distributed, loader)


def _smaller(loader: DataLoader, size: int) -> DataLoader:
    from allranks.train.data.loader_copy import copy_loader

    batches = BatchSampler(loader.sampler, size, loader.drop_last)
    changed = {"batch_size": size, "batch_sampler": batches}
    return copy_loader(loader, torch.Generator(), torch.device("cpu"), **changed)


def _unbatched(loader: DataLoader, layout: RankLayout, options: LoaderOptions) -> DistributedLoader:
    _refuse_global(layout, options, "a loader with batch_size=None")
    sampler, order = loader.sampler, None
    if has_length(sampler):
        order = order_of(loader, sampler, options.seed, layout.size, options.training)
    strided = StridedSampler(sampler, order, options.seed, layout.rank, layout.size)
    distributed = StreamLoader(loader, layout, options, strided)
    if order is not None:
        distributed.batches = -(-order.samples // layout.size)
    return distributed


def _with_length(distributed: StreamLoader, source: Any) -> DistributedLoader:
    """Set the stream's own length where there is one rank; over several ranks it is unknown."""
    if distributed.layout.size == 1 and not distributed.endless and has_length(source):
        distributed.batches = len(source)
    return distributed


def _refuse_global(layout: RankLayout, options: LoaderOptions, what: str) -> None:
    if options.batch_size_is == "global" and layout.size > 1:
        raise UsageError(
            f"batch_size_is='global' cannot divide {what} among {layout.size} ranks. Use "
            "batch_size_is='per_rank', with batches of the size that one rank should take."
        )
