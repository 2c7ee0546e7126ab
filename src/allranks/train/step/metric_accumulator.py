"""Losses and metrics, accumulated on the device and read late.

The step appends a detached tensor to a list and nothing more. At a log step the list becomes one
vector of sums and counts, reduced over the ranks in one collective and copied to the host without
waiting; its numbers are read at the next log step, when they have long arrived.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from allranks.errors import UsageError

Entry = tuple[Any, Mapping[str, Any], int]


class MetricAccumulator:
    """Means over samples and ranks since the last flush."""

    def __init__(self, device: torch.device, size: int, rank: int = 0) -> None:
        self._device = device
        self._size, self._rank = size, rank
        self._entries: list[Entry] = []
        self._names: list[str] | None = None
        self._loaded = 0

    def add(self, loss: torch.Tensor | float, metrics: Mapping[str, Any], count: int) -> None:
        """Add a batch of ``count`` samples; ``loss`` is detached, or on a CPU a number."""
        self._entries.append((loss, metrics, count))

    @property
    def last_loss(self) -> torch.Tensor | None:
        """The loss of the latest batch."""
        return torch.as_tensor(self._entries[-1][0]) if self._entries else None

    @property
    def samples(self) -> int:
        """Samples of this rank since the last flush, without those of an earlier attempt."""
        return sum(count for _, _, count in self._entries) - self._loaded

    def __len__(self) -> int:
        return len(self._entries)

    def state(self) -> list[Any]:
        """Return what this rank added since the last flush, as plain numbers; waits for the device once."""
        tensors: list[torch.Tensor] = []
        for loss, metrics, _ in self._entries:
            tensors += [self._scalar(loss), *map(self._scalar, metrics.values())]
        numbers = iter(torch.stack([each.double() for each in tensors]).tolist() if tensors else ())
        return [
            [next(numbers), {name: next(numbers) for name in metrics}, count]
            for _, metrics, count in self._entries
        ]

    def load_state(self, state: Sequence[Any]) -> None:
        """Restore what `state` returned."""
        self._entries += [(loss, metrics, count) for loss, metrics, count in state]
        self._loaded = sum(count for _, _, count in self._entries)

    def flush(self, shared: Sequence[float] = (), own: Sequence[float] = ()) -> ReducedMetrics:
        """Start the reduction of what was added; collective.

        The same vector carries ``shared`` numbers, which are summed, and each rank's ``own``, which have
        a place for every rank. All ranks must give equally many.
        """
        entries, self._entries, self._loaded = self._entries, [], 0
        names = ["loss", *sorted({name for entry in entries for name in entry[1]})]
        if self._size > 1:
            names = self._agree_on_names(names if entries else None)
        if self._device.type == "cpu":
            return self._flush_on_cpu(names, entries, shared, own)
        sums: list[torch.Tensor] = []
        counts: list[float] = []
        for name in names:
            total, count = self._total(name, entries)
            sums.append(total)
            counts.append(count)
        known = torch.tensor([*counts, *shared, *own], dtype=torch.float64).to(self._device)
        vector = torch.cat([torch.stack(sums), self._place_by_rank(known, len(own))])
        if self._size > 1:
            dist.all_reduce(vector)
        return ReducedMetrics(names, vector, len(shared))

    def _place_by_rank(self, known: torch.Tensor, many: int) -> torch.Tensor:
        """Move the last ``many`` numbers to this rank's place among zeros for the others."""
        if self._size == 1 or not many:
            return known
        per_rank = known.new_zeros(self._size, many)
        per_rank[self._rank] = known[-many:]
        return torch.cat([known[:-many], per_rank.flatten()])

    def _agree_on_names(self, names: list[str] | None) -> list[str]:
        """Return the names that all ranks send; None is of a rank that added nothing, as after a restart.

        Ranks that send vectors of different lengths would hang or abort: raise at the first difference.
        """
        if self._names is None:
            every: list[Any] = [None] * self._size
            dist.all_gather_object(every, names)
            there = {rank: other for rank, other in enumerate(every) if other is not None}
            first = min(there, default=0)
            for rank, other in there.items():
                if other != there[first]:
                    raise UsageError(
                        f"Rank {rank} measures {', '.join(other)}, "
                        f"rank {first} {', '.join(there[first])}.\n"
                        "Every rank must return the same metrics in every step."
                    )
            self._names = there.get(first)
        if names is not None and names != self._names:
            raise UsageError(
                f"The metrics were {', '.join(self._names or ())} and are now {', '.join(names)}.\n"
                "With several ranks every step must return the same ones."
            )
        return self._names or ["loss"]

    def _flush_on_cpu(
        self,
        names: list[str],
        entries: Sequence[Entry],
        shared: Sequence[float],
        own: Sequence[float],
    ) -> ReducedMetrics:
        """Read the numbers at once: on a CPU that is cheaper than adding tensors."""
        sums, counts = [0.0] * len(names), [0.0] * len(names)
        for loss, metrics, count in entries:
            if not count:
                continue
            sums[0] += count * float(loss)
            counts[0] += count
            for place, name in enumerate(names[1:] if metrics else (), start=1):
                if name in metrics:
                    sums[place] += count * self._scalar(metrics[name]).item()
                    counts[place] += count
        if self._size == 1:
            return ReducedMetrics(names, [*sums, *counts, *shared, *own], len(shared))
        before, after = self._rank * len(own), (self._size - 1 - self._rank) * len(own)
        per_rank = [*[0.0] * before, *own, *[0.0] * after]
        vector = torch.tensor([*sums, *counts, *shared, *per_rank], dtype=torch.float64)
        dist.all_reduce(vector)
        return ReducedMetrics(names, vector, len(shared))

    def _total(self, name: str, entries: Sequence[Entry]) -> tuple[torch.Tensor, float]:
        if name == "loss":
            tensors = [self._scalar(entry[0]) for entry in entries if entry[2]]
            counts = [entry[2] for entry in entries if entry[2]]
        else:
            there = [entry for entry in entries if entry[2] and name in entry[1]]
            tensors = [self._scalar(entry[1][name]) for entry in there]
            counts = [entry[2] for entry in there]
        if not tensors:
            return torch.zeros((), dtype=torch.float64, device=self._device), 0.0
        values = torch.stack(tensors).flatten()
        if min(counts) == max(counts):
            return values.sum(dtype=torch.float64) * counts[0], float(sum(counts))
        weights = torch.tensor(counts, dtype=torch.float64).to(self._device, non_blocking=True)
        return values.double() @ weights, float(sum(counts))

    def _scalar(self, value: Any) -> torch.Tensor:
        if not isinstance(value, torch.Tensor):
            return torch.tensor(float(value), dtype=torch.float64, device=self._device)
        value = value.detach()
        return (value if value.ndim == 0 else value.float().mean()).to(self._device)


class ReducedMetrics:
    """A reduced vector on its way to the host."""

    def __init__(
        self, names: Sequence[str], vector: torch.Tensor | list[float], shared: int = 0
    ) -> None:
        self._names, self._shared = names, shared
        self._event: Any = None
        self._host: Any = vector
        self._read: list[float] | None = vector if isinstance(vector, list) else None
        if isinstance(vector, torch.Tensor) and vector.device.type == "cuda":
            self._host = torch.empty(vector.shape, dtype=vector.dtype, pin_memory=True)
            self._host.copy_(vector, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()

    def _numbers(self) -> list[float]:
        if self._read is None:
            if self._event is not None:
                self._event.synchronize()
            self._read = self._host.tolist()
        return self._read

    def sums(self) -> dict[str, tuple[float, float]]:
        """Return (sum, samples) of each name, to be added up to longer means."""
        numbers, many = self._numbers(), len(self._names)
        return {name: (numbers[i], numbers[many + i]) for i, name in enumerate(self._names)}

    def means(self) -> dict[str, float]:
        """Return the mean over samples of each name that has any."""
        return {name: total / count for name, (total, count) in self.sums().items() if count}

    def shared(self) -> list[float]:
        """Return the sums over the ranks of the ``shared`` numbers."""
        first = 2 * len(self._names)
        return self._numbers()[first : first + self._shared]

    def per_rank(self) -> list[float]:
        """Return every rank's own numbers, one rank after the other."""
        return self._numbers()[2 * len(self._names) + self._shared :]

    def single(self) -> float:
        """Return the number of a vector of one."""
        return self._numbers()[0]


class DeferredScalar:
    """A number on the device, copied now and read when it is used."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._reading = ReducedMetrics([], tensor.detach().reshape(1))

    def __float__(self) -> float:
        return self._reading.single()


class MetricSums:
    """Reduced metrics added up: the mean over an epoch."""

    def __init__(self, totals: Mapping[str, tuple[float, float]] | None = None) -> None:
        self.totals = dict(totals or {})
        """(sum, samples) of each name."""

    def add(self, reading: ReducedMetrics) -> None:
        """Add the sums and counts of another window."""
        for name, (total, count) in reading.sums().items():
            known = self.totals.get(name, (0.0, 0.0))
            self.totals[name] = (known[0] + total, known[1] + count)

    def means(self) -> dict[str, float]:
        """Return the mean over samples of each name that has any."""
        return {name: total / count for name, (total, count) in self.totals.items() if count}
