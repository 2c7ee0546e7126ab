"""Loaders over plain tensors, whose batches are indexed as a whole, not sample by sample."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torch.utils.data._utils.collate import default_collate

from allranks.errors import UsageError
from allranks.train.data.base import LoaderOptions, Pair, RankLayout
from allranks.train.data.batch_schedule import BatchSchedule, ListedSchedule
from allranks.train.data.map_style import IndexedLoader
from allranks.train.data.sample_order import EndlessSampler

RESIDENT_BYTES = 2 << 30
_RESIDENT_PART = 16


def is_plain_tensors(loader: DataLoader) -> bool:
    """Return whether the loader only indexes plain tensors, so that no user code would be skipped."""
    return (
        type(loader) is DataLoader
        and type(loader.dataset) in (TensorDataset, InfiniteTensorDataset)
        and loader.collate_fn is default_collate
        and loader.num_workers == 0
        and all(
            type(t) is torch.Tensor and t.layout == torch.strided for t in loader.dataset.tensors
        )
    )


class TensorLoader(IndexedLoader):
    """Batches indexed from tensors, which are kept on the GPU when they are small beside its memory."""

    def __init__(
        self,
        schedule: BatchSchedule,
        loader: DataLoader,
        layout: RankLayout,
        options: LoaderOptions,
    ) -> None:
        super().__init__(schedule, loader, layout, options)
        self._tensors: tuple[Any, ...] = loader.dataset.tensors
        self._straight = isinstance(schedule, ListedSchedule) and schedule.order.straight
        self._resident = False
        if layout.device.type == "cuda" and _fits(self._tensors, layout.device):
            self._tensors = tuple(self._on_device(tensor) for tensor in self._tensors)
            self._resident = True
            self.notes.append(f"the dataset is small and is kept on {layout.device}.")

    def _on_device(self, tensor: Any) -> Any:
        floats = tensor.is_floating_point()
        return tensor.to(self.layout.device, self.options.dtype if floats else None)

    def epoch(self, number: int, *, skip: int = 0) -> Iterator[Pair]:
        pairs = super().epoch(number, skip=skip)
        return self._resident_pairs(number, skip) if self._resident else pairs

    def _pairs(self, number: int, skip: int) -> Iterator[Pair]:
        audit_log = self._begin_audit(number, skip)
        cut = self._copied if self._straight else self._gathered
        if self.layout.device.type == "cuda" and not self._straight:
            cut = self._gathered_pinned
        for mine, whole, weight in self.schedule.batches_from(number, skip):
            if audit_log is not None:
                audit_log.add(mine, whole, weight is None or weight.count > 0)
            yield cut(mine), weight

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
        audit_log, device = self._begin_audit(number, skip), self.layout.device
        if not isinstance(self.schedule, ListedSchedule):
            yield from self._resident_rounds(number, skip)
            return
        order = self.schedule.listed(number)
        moved = None if self._straight else torch.from_numpy(order).to(device)
        full = self.global_batch or 1
        for begin, start, stop, weight in self.schedule.spans(number, len(order), skip):
            if audit_log is not None:
                whole = order[begin : begin + full]
                audit_log.add(order[start:stop], whole, weight is None or weight.count > 0)
            if moved is None:
                yield [t.narrow(0, start, stop - start).clone() for t in self._tensors], weight
            else:
                index = moved[start:stop]
                yield [tensor.index_select(0, index) for tensor in self._tensors], weight

    def _resident_rounds(self, number: int, skip: int) -> Iterator[Pair]:
        for mine, whole, weight in self.schedule.batches_from(number, skip):
            if self._audit_log is not None:
                self._audit_log.add(mine, whole, weight is None or weight.count > 0)
            index = torch.from_numpy(mine).pin_memory().to(self.layout.device, non_blocking=True)
            yield [tensor.index_select(0, index) for tensor in self._tensors], weight

    def close(self) -> None:
        self._tensors = ()


def _fits(tensors: tuple[Any, ...], device: torch.device) -> bool:
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    free, _ = torch.cuda.mem_get_info(device)
    return bool(size < RESIDENT_BYTES and size < free / _RESIDENT_PART)


def _into_pinned(tensor: Any, index: Any) -> Any:
    if tensor.device.type != "cpu" or tensor.requires_grad:
        return tensor.index_select(0, index.to(tensor.device))
    shape = (len(index), *tensor.shape[1:])
    out = torch.empty(shape, dtype=tensor.dtype, pin_memory=True)
    return torch.index_select(tensor, 0, index, out=out)


def to_dataloader(*tensors: Any, batch_size: int = 1, infinite: bool = False) -> DataLoader:
    """Return a DataLoader over tensors of equal length: in order, or endless in random order."""
    if infinite:
        return DataLoader(InfiniteTensorDataset(*tensors), batch_size=batch_size)
    return DataLoader(TensorDataset(*tensors), batch_size=batch_size)


class InfiniteTensorDataset(IterableDataset):
    """Endless samples of the tensors in random order; each pass is a new permutation.

    In a plain DataLoader the ranks draw parts of one global batch. Otherwise it is a stream like any
    other: all ranks read the same and take their batches in turn.
    """

    def __init__(self, *tensors: Any) -> None:
        if not tensors or len({len(tensor) for tensor in tensors}) != 1:
            sizes = ", ".join(str(len(tensor)) for tensor in tensors)
            raise UsageError(f"The tensors must have equal lengths; these have: {sizes or 'none'}.")
        if len(tensors[0]) == 0:
            raise UsageError("The tensors hold no samples.")
        self.tensors = tensors

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for index in EndlessSampler(len(self.tensors[0])):
            yield tuple(tensor[index] for tensor in self.tensors)
