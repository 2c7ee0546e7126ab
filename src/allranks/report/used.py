"""What the samples of a run say of its nodes and GPUs, over all attempts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from allranks.monitor.source import AttemptSource, NodeSource, Source
from allranks.report.model import GpuUsed, Used

MOST, LEAST, ALL = 1500, 200, 20_000
"""Samples read of each file of a node, evenly spaced, at most and at least; and of all files about."""
HIGH = 0.95
"""The share of the time in which a level was not exceeded."""


@dataclass
class _Node:
    """All samples of one host."""

    host: str
    node: int
    cpus: list[float] = field(default_factory=list)
    memory: float = 0.0
    memory_limit: int | None = None
    cpus_allowed: int | None = None
    net: list[float] = field(default_factory=list)
    disk: list[float] = field(default_factory=list)


@dataclass
class _Gpu:
    facts: Mapping[str, Any]
    host: str
    node: int
    number: int
    use: list[float] = field(default_factory=list)
    power: list[float] = field(default_factory=list)
    temperature: list[float] = field(default_factory=list)
    memory: float = 0.0
    joules: float = 0.0

    def add(self, sample: Mapping[str, Any]) -> None:
        """One sample of it; what is absent was not measured."""
        for name, values in (
            ("use", self.use),
            ("power", self.power),
            ("temperature", self.temperature),
        ):
            value = sample.get(name)
            if isinstance(value, (int, float)):
                values.append(value)
        self.memory = max(self.memory, _number(sample.get("memory")) or 0.0)


def sampled(source: Source) -> Used:
    """The run's use of its machines; without a source where nothing was sampled."""
    nodes: dict[str, _Node] = {}
    gpus: dict[tuple[str, str], _Gpu] = {}
    seconds, counts = 0.0, []
    for attempt in source.attempts.values():
        begun, most = _begun(attempt), _most(source)
        spans = [_read(each, begun, most, nodes, gpus) for each in attempt.nodes.values()]
        seconds += max((span for span, _ in spans), default=0.0)
        counts += [count for _, count in spans]
    if not any(counts):
        return Used()
    return _used(list(nodes.values()), list(gpus.values()), seconds, max(counts))


def _most(source: Source) -> int:
    files = sum(
        len(node.files) for each in source.attempts.values() for node in each.nodes.values()
    )
    return min(max(ALL // max(files, 1), LEAST), MOST)


def _begun(attempt: AttemptSource) -> float:
    """When its first step began: what came before is its start, in which GPUs wait."""
    progress = attempt.attempt.progress
    return (progress.began if progress else None) or 0.0


def _read(
    node: NodeSource,
    begun: float,
    most: int,
    nodes: dict[str, _Node],
    gpus: dict[tuple[str, str], _Gpu],
) -> tuple[float, int]:
    """Add the samples of one node in one attempt; their span and their number."""
    about = nodes.setdefault(node.host, _Node(node.host, node.node))
    about.memory_limit = _limit(node.facts) or about.memory_limit
    about.cpus_allowed = node.facts.get("cpus") or about.cpus_allowed
    span, count = 0.0, 0
    for local_rank, file in node.files.items():
        rows = [row for row in _evenly(file, most) if (_number(row.get("time")) or 0.0) >= begun]
        times = [time for row in rows if (time := _number(row.get("time"))) is not None]
        length = times[-1] - times[0] if times else 0.0
        span, count = max(span, length), max(count, len(rows))
        if local_rank == min(node.files):
            _add_node(about, rows)
        _add_gpus(node, local_rank, rows, length, gpus)
    return span, count


def _evenly(file: Any, most: int) -> list[Mapping[str, Any]]:
    stride = -(-len(file) // most) or 1
    places = sorted({*range(0, len(file), stride), *range(max(len(file) - 1, 0), len(file))})
    return list(file.at(places))


def _add_node(about: _Node, rows: Sequence[Mapping[str, Any]]) -> None:
    about.cpus += _numbers(rows, "cpu")
    about.memory = max([about.memory, *_numbers(rows, "memory")])
    about.net += _sums(rows, ("net_in", "net_out"))
    about.disk += _sums(rows, ("disk_read", "disk_write"))


def _add_gpus(
    node: NodeSource,
    local_rank: int,
    rows: Sequence[Mapping[str, Any]],
    length: float,
    gpus: dict[tuple[str, str], _Gpu],
) -> None:
    host = node.host
    found: dict[int, _Gpu] = {}
    before: dict[int, int] = {}
    for row in rows:
        for number, sample in node.gpus_in(local_rank, row):
            gpu = found.get(number)
            if gpu is None:
                facts = node.gpus.get(number, {})
                key = (host, str(facts.get("uuid") or number))
                gpu = gpus.setdefault(key, _Gpu(facts, host, node.node, number))
                found[number], before[number] = gpu, len(gpu.power)
            gpu.add(sample)
    for number, gpu in found.items():
        gpu.joules += (mean(gpu.power[before[number] :]) or 0.0) * length


def _used(nodes: list[_Node], gpus: list[_Gpu], seconds: float, samples: int) -> Used:
    busiest = max(nodes, key=lambda node: mean(node.cpus) or 0.0)
    fullest = max(nodes, key=lambda node: node.memory)
    joules = sum(gpu.joules for gpu in gpus)
    return Used(
        source="samples",
        seconds=seconds,
        samples=samples,
        cpus=mean(busiest.cpus),
        cpus_high=high(busiest.cpus),
        cpus_host=busiest.host,
        cpus_allowed=busiest.cpus_allowed,
        memory=int(fullest.memory) or None,
        memory_host=fullest.host if len(nodes) > 1 else "",
        memory_limit=fullest.memory_limit,
        net=max((mean(node.net) or 0.0 for node in nodes), default=None),
        disk=max((mean(node.disk) or 0.0 for node in nodes), default=None),
        energy=joules or None,
        gpus=[_gpu(gpu) for gpu in sorted(gpus, key=lambda gpu: (gpu.node, gpu.host, gpu.number))],
    )


def _gpu(gpu: _Gpu) -> GpuUsed:
    total = _number(gpu.facts.get("memory_total"))
    return GpuUsed(
        node=gpu.node,
        host=gpu.host,
        gpu=gpu.number,
        name=str(gpu.facts.get("name") or ""),
        use=mean(gpu.use),
        memory=int(gpu.memory) or None,
        memory_total=int(total) if total else None,
        power=mean(gpu.power),
        power_limit=_number(gpu.facts.get("power_limit")),
        temperature=high(gpu.temperature),
    )


def mean(values: Sequence[float]) -> float | None:
    """None when there are none."""
    return sum(values) / len(values) if values else None


def high(values: Sequence[float]) -> float | None:
    """The level that is exceeded in a twentieth of the values only."""
    return sorted(values)[min(int(len(values) * HIGH), len(values) - 1)] if values else None


def _limit(facts: Mapping[str, Any]) -> int | None:
    found = _number(facts.get("memory_limit")) or _number(facts.get("memory_total"))
    return int(found) if found else None


def _numbers(rows: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [each for row in rows for each in _known(row.get(name))]


def _sums(rows: Sequence[Mapping[str, Any]], names: tuple[str, str]) -> list[float]:
    return list(_both(rows, names))


def _both(rows: Sequence[Mapping[str, Any]], names: tuple[str, str]) -> Iterator[float]:
    for row in rows:
        found = [each for name in names for each in _known(row.get(name))]
        if found:
            yield sum(found)


def _known(value: object) -> list[float]:
    number = _number(value)
    return [] if number is None else [number]


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and value == value else None
