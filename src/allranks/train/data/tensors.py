"""The short way for TensorDataset: whole batches are cut from the tensors, sample by sample never."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data._utils.collate import default_collate

from allranks.train.data.base import FeedOptions, Pair, Place
from allranks.train.data.indexed import Indexed
from allranks.train.data.infinite import InfiniteTensorDataset
from allranks.train.data.schedule import Listed, Schedule

_RESIDENT_BYTES = 2 << 30
_RESIDENT_PART = 16


def has_short_way(loader: DataLoader) -> bool:
    """Whether the loader only cuts batches from plain tensors: nothing of the user's would be skipped."""
    return (
        type(loader) is DataLoader
        and type(loader.dataset) in (TensorDataset, InfiniteTensorDataset)
        and loader.collate_fn is default_collate
        and loader.num_workers == 0
        and all(
            type(t) is torch.Tensor and t.layout == torch.strided for t in loader.dataset.tensors
        )
    )


class TensorFeed(Indexed):
    """Batches gathered from tensors, on the GPU when the dataset is small beside its memory."""

    def __init__(
        self, schedule: Schedule, loader: DataLoader, place: Place, options: FeedOptions
    ) -> None:
        super().__init__(schedule, loader, place, options)
        self._tensors: tuple[Any, ...] = loader.dataset.tensors
        self._straight = isinstance(schedule, Listed) and schedule.order.straight
        self._resident = False
        if place.device.type == "cuda" and _fits(self._tensors, place.device):
            self._tensors = tuple(self._on_device(tensor) for tensor in self._tensors)
            self._resident = True
            self.notes.append(f"the dataset is small and is kept on {place.device}.")

    def _on_device(self, tensor: Any) -> Any:
        floats = tensor.is_floating_point()
        return tensor.to(self.place.device, self.options.dtype if floats else None)

    def epoch(self, number: int, *, skip: int = 0) -> Iterator[Pair]:
        pairs = super().epoch(number, skip=skip)
        return self._resident_pairs(number, skip) if self._resident else pairs

    def _pairs(self, number: int, skip: int) -> Iterator[Pair]:
        ledger = self._begin_audit(number, skip)
        cut = self._copied if self._straight else self._gathered
        if self.place.device.type == "cuda" and not self._straight:
            cut = self._gathered_pinned
        for mine, whole, share in self.schedule.rounds(number, skip):
            if ledger is not None:
                ledger.add(mine, whole, share is None or share.count > 0)
            yield cut(mine), share

    def _gathered(self, mine: Any) -> list[Any]:
        index = torch.from_numpy(mine)
        return [tensor.index_select(0, index) for tensor in self._tensors]

    def _copied(self, mine: Any) -> list[Any]:
        # A copy, since a view would let an in-place step of the user change the dataset.
        start, length = int(mine[0]), len(mine)
        return [tensor.narrow(0, start, length).clone() for tensor in self._tensors]

    def _gathered_pinned(self, mine: Any) -> list[Any]:
        index = torch.from_numpy(mine)
        return [_into_pinned(tensor, index) for tensor in self._tensors]

    def _resident_pairs(self, number: int, skip: int) -> Iterator[Pair]:
        ledger, device = self._begin_audit(number, skip), self.place.device
        if not isinstance(self.schedule, Listed):
            yield from self._resident_rounds(number, skip)
            return
        order = self.schedule.listed(number)
        moved = None if self._straight else torch.from_numpy(order).to(device)
        full = self.global_batch or 1
        for begin, start, stop, share in self.schedule.spans(number, len(order), skip):
            if ledger is not None:
                whole = order[begin : begin + full]
                ledger.add(order[start:stop], whole, share is None or share.count > 0)
            if moved is None:
                yield [t.narrow(0, start, stop - start).clone() for t in self._tensors], share
            else:
                index = moved[start:stop]
                yield [tensor.index_select(0, index) for tensor in self._tensors], share

    def _resident_rounds(self, number: int, skip: int) -> Iterator[Pair]:
        for mine, whole, share in self.schedule.rounds(number, skip):
            if self._ledger is not None:
                self._ledger.add(mine, whole, share is None or share.count > 0)
            index = torch.from_numpy(mine).pin_memory().to(self.place.device, non_blocking=True)
            yield [tensor.index_select(0, index) for tensor in self._tensors], share

    def close(self) -> None:
        self._tensors = ()


def _fits(tensors: tuple[Any, ...], device: torch.device) -> bool:
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    free, _ = torch.cuda.mem_get_info(device)
    return bool(size < _RESIDENT_BYTES and size < free / _RESIDENT_PART)


def _into_pinned(tensor: Any, index: Any) -> Any:
    if tensor.device.type != "cpu" or tensor.requires_grad:
        return tensor.index_select(0, index.to(tensor.device))
    shape = (len(index), *tensor.shape[1:])
    out = torch.empty(shape, dtype=tensor.dtype, pin_memory=True)
    return torch.index_select(tensor, 0, index, out=out)
