"""What a run used of its nodes and GPUs, from the samples of all attempts.

Peaks and sums are over every sample. Means and levels are those of the training, from its first step on:
GPUs are idle while a run starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from allranks.core.json_numbers import finite_number, whole_number
from allranks.observe.report.model import GpuUsed, RequestedResources, UsedResources
from allranks.observe.view.run_source import AttemptSource, RunSource
from allranks.runs.node_samples import NodeSource

MOST, LEAST, ALL = 1500, 200, 20_000
"""Samples of each file of a node that means are taken of, evenly spaced, at most and at least; of all about."""
HIGH = 0.95
"""The share of the time in which a level was not exceeded."""

Row = Mapping[str, Any]


@dataclass
class _Node:
    """All samples of one host."""

    host: str
    node: int
    cpus: list[float] = field(default_factory=list)
    memory: float = 0.0
    memory_limit: int | None = None
    memory_total: int | None = None
    cpus_allowed: int | None = None
    cpus_total: int | None = None
    net: list[float] = field(default_factory=list)
    disk: list[float] = field(default_factory=list)

    def know(self, facts: Row) -> None:
        """Record what the sampler wrote about the node itself."""
        total, limit = (
            finite_number(facts.get("memory_total")),
            finite_number(facts.get("memory_limit")),
        )
        self.memory_total = int(total) if total else self.memory_total
        self.memory_limit = int(limit) if limit else self.memory_limit or self.memory_total
        self.cpus_allowed = whole_number(facts.get("cpus")) or self.cpus_allowed
        self.cpus_total = whole_number(facts.get("cpus_total")) or self.cpus_total

    def peak(self, row: Row) -> None:
        """Add a sample to the peaks."""
        self.memory = max(self.memory, finite_number(row.get("memory")) or 0.0)

    def add(self, row: Row) -> None:
        """Add a sample to the means; absent values were not measured."""
        _append(self.cpus, row, "cpu")
        _append(self.net, row, "net_in", "net_out")
        _append(self.disk, row, "disk_read", "disk_write")


@dataclass
class _Gpu:
    facts: Row
    host: str
    node: int
    number: int
    use: list[float] = field(default_factory=list)
    power: list[float] = field(default_factory=list)
    temperature: list[float] = field(default_factory=list)
    memory: float = 0.0
    joules: float = 0.0

    def peak(self, row: Row, seconds: float) -> None:
        """Add a sample to the peaks; it is the mean of so many seconds."""
        self.memory = max(self.memory, finite_number(row.get("memory")) or 0.0)
        self.joules += (finite_number(row.get("power")) or 0.0) * seconds

    def add(self, row: Row) -> None:
        """Add a sample to the means."""
        _append(self.use, row, "use")
        _append(self.power, row, "power")
        _append(self.temperature, row, "temperature")


@dataclass
class _Machines:
    """All hosts and GPUs of a run."""

    most: int
    """Samples of a file that means are taken of."""
    nodes: dict[str, _Node] = field(default_factory=dict)
    gpus: dict[tuple[str, str], _Gpu] = field(default_factory=dict)

    def read(self, node: NodeSource, begun: float) -> tuple[float, int]:
        """Add the samples of one node in one attempt; return how long it trained, in how many samples."""
        about = self.nodes.setdefault(node.host, _Node(node.host, node.node))
        about.know(node.facts)
        trained = [self._file(node, about, who, begun) for who in node.files]
        return max((span for span, _ in trained), default=0.0), max(
            (n for _, n in trained), default=0
        )

    def _file(
        self, node: NodeSource, about: _Node, local_rank: int, begun: float
    ) -> tuple[float, int]:
        file, gpus = node.files[local_rank], dict[int, _Gpu]()
        own = local_rank == min(node.files)
        stride = -(-len(file) // self.most) or 1
        times = []
        for place, row in enumerate(file):
            moment, seconds = (
                finite_number(row.get("time")) or 0.0,
                finite_number(row.get("seconds")) or 0.0,
            )
            counts = moment >= begun and place % stride == 0
            if moment >= begun:
                times.append(moment)
            if own:
                about.peak(row)
                if counts:
                    about.add(row)
            for number, sample in node.gpus_in(local_rank, row):
                if number not in gpus:
                    gpus[number] = self._gpu(node, number)
                gpus[number].peak(sample, seconds)
                if counts:
                    gpus[number].add(sample)
        return (times[-1] - times[0] if times else 0.0), len(times)

    def _gpu(self, node: NodeSource, number: int) -> _Gpu:
        facts = node.gpus.get(number, {})
        key = (node.host, str(facts.get("uuid") or number))
        return self.gpus.setdefault(key, _Gpu(facts, node.host, node.node, number))


def sampled_usage(source: RunSource) -> UsedResources:
    """Return what a run used of its machines; without a source where nothing was sampled."""
    machines = _Machines(_most(source))
    seconds, counts = 0.0, []
    for attempt in source.attempts.values():
        trained = [
            machines.read(each, _first_step_time(attempt)) for each in attempt.nodes.values()
        ]
        seconds += max((span for span, _ in trained), default=0.0)
        counts += [count for _, count in trained]
    nodes, gpus = list(machines.nodes.values()), list(machines.gpus.values())
    if not any(len(file) for file in _files(source)):
        return UsedResources()
    return _used(nodes, gpus, seconds, max(counts))


def without_foreign_gpus(used: UsedResources, asked: RequestedResources) -> UsedResources:
    """Drop the GPUs where a node showed more than were requested: some belong to others."""
    counts: dict[str, int] = {}
    for gpu in used.gpus:
        counts[gpu.host] = counts.get(gpu.host, 0) + 1
    most = asked.gpus_per_node
    if not most or max(counts.values(), default=0) <= most or used.source != "samples":
        return used
    return replace(used, gpus=(), energy=None)


def _files(source: RunSource) -> list[Sequence[Row]]:
    nodes = [node for each in source.attempts.values() for node in each.nodes.values()]
    return [file for node in nodes for file in node.files.values()]


def _most(source: RunSource) -> int:
    return min(max(ALL // max(len(_files(source)), 1), LEAST), MOST)


def _first_step_time(attempt: AttemptSource) -> float:
    """Return when the attempt's first step began."""
    progress = attempt.attempt.progress
    return (progress.began if progress else None) or 0.0


def _used(nodes: list[_Node], gpus: list[_Gpu], seconds: float, samples: int) -> UsedResources:
    busiest = max(nodes, key=lambda node: mean(node.cpus) or 0.0)
    fullest = max(nodes, key=lambda node: node.memory)
    joules = sum(gpu.joules for gpu in gpus)
    return UsedResources(
        source="samples",
        seconds=seconds,
        samples=samples,
        cpus=mean(busiest.cpus),
        cpus_high=high(busiest.cpus),
        cpus_host=busiest.host,
        cpus_allowed=busiest.cpus_allowed,
        cpus_total=busiest.cpus_total,
        memory=int(fullest.memory) or None,
        memory_host=fullest.host if len(nodes) > 1 else "",
        memory_limit=fullest.memory_limit,
        memory_total=fullest.memory_total,
        net=max((mean(node.net) or 0.0 for node in nodes), default=None),
        disk=max((mean(node.disk) or 0.0 for node in nodes), default=None),
        energy=joules or None,
        gpus=[_gpu(gpu) for gpu in sorted(gpus, key=lambda gpu: (gpu.node, gpu.host, gpu.number))],
    )


def _gpu(gpu: _Gpu) -> GpuUsed:
    total = finite_number(gpu.facts.get("memory_total"))
    return GpuUsed(
        node=gpu.node,
        host=gpu.host,
        gpu=gpu.number,
        name=str(gpu.facts.get("name") or ""),
        use=mean(gpu.use),
        memory=int(gpu.memory) or None,
        memory_total=int(total) if total else None,
        power=mean(gpu.power),
        power_limit=finite_number(gpu.facts.get("power_limit")),
        temperature=high(gpu.temperature),
    )


def mean(values: Sequence[float]) -> float | None:
    """Return the mean; None without values."""
    return sum(values) / len(values) if values else None


def high(values: Sequence[float]) -> float | None:
    """Return the level that only a twentieth of the values exceed."""
    return sorted(values)[min(int(len(values) * HIGH), len(values) - 1)] if values else None


def _append(values: list[float], row: Row, *names: str) -> None:
    """Append the sum of the values that are known."""
    known = [each for name in names if (each := finite_number(row.get(name))) is not None]
    if known:
        values.append(sum(known))
