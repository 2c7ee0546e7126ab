"""The current state of nodes, GPUs and ranks, from samples, rank files and step windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from allranks.core.json_numbers import finite_number, whole_number
from allranks.observe.view.model import GpuNow, NodeNow, RankNow
from allranks.observe.view.run_source import AttemptSource
from allranks.observe.view.stragglers import WINDOWS, find_stragglers, median_behind
from allranks.runs.attempt import Rank
from allranks.runs.node_samples import NodeSource


def nodes_now(attempt: AttemptSource) -> list[NodeNow]:
    """Return each node in its latest sample."""
    found = (_node(source) for _, source in sorted(attempt.nodes.items()))
    return [node for node in found if node is not None]


def ranks_now(attempt: AttemptSource, nodes: Sequence[NodeNow]) -> list[RankNow]:
    """Return each rank in the latest window, with its GPU."""
    windows = attempt.steps[-WINDOWS:]
    latest = windows[-1] if windows else {}
    shares, slow = median_behind(windows), set(find_stragglers(windows))
    about = {rank.rank: rank for rank in attempt.ranks}
    failed = {failure.rank for failure in attempt.attempt.failures()}
    gpus = {(node.node, gpu.gpu): gpu for node in nodes for gpu in node.gpus}
    places = gpu_of_ranks(attempt)
    return [
        RankNow(
            rank=rank,
            host=about[rank].host if rank in about else "",
            gpu=gpus.get(places.get(rank, (-1, -1))),
            step_seconds=_at(latest.get("step_seconds"), rank),
            data_seconds=_at(latest.get("data_seconds"), rank),
            compute_seconds=_at(latest.get("compute_seconds"), rank),
            communication_seconds=_at(latest.get("communication_seconds"), rank),
            behind=shares.get(rank),
            straggler=rank in slow,
            failed=rank in failed,
        )
        for rank in sorted({*about, *shares, *range(_length(latest))})
    ]


def gpu_of_ranks(attempt: AttemptSource) -> dict[int, tuple[int, int]]:
    """Map ranks to (node, GPU), for the ranks whose GPU is known."""
    by_host = {node.host: node for node in attempt.nodes.values()}
    found: dict[int, tuple[int, int]] = {}
    for rank in attempt.ranks:
        node = attempt.nodes.get(-1 if rank.node_rank is None else rank.node_rank)
        node = node or by_host.get(rank.host)
        gpu = _gpu_of(rank, node) if node else None
        if node is not None and gpu is not None:
            found[rank.rank] = (node.node, gpu)
    return found


def _gpu_of(rank: Rank, node: NodeSource) -> int | None:
    """Return the GPU of a rank: the only one it sees, else by its visible devices and local rank."""
    local = rank.local_rank or 0
    fenced = len(node.files) > 1 and local in node.files
    seen = node.gpus_of(local) if fenced else sorted(node.gpus)
    if not seen:
        return None
    if fenced and len(seen) == 1:
        return seen[0]
    visible = [word.strip() for word in rank.devices.split(",") if word.strip()]
    if (
        not visible
    ):  # nothing is hidden: local rank n takes the n-th, from the first again if too few
        return seen[local % len(seen)]
    return _gpu_by_name(visible[local % len(visible)], seen, node)


def _gpu_by_name(word: str, seen: list[int], node: NodeSource) -> int | None:
    """Return the GPU of a number or the beginning of a uuid, as in CUDA_VISIBLE_DEVICES."""
    if word.isdigit():
        # In a container the numbers start at 0 again, whatever the driver calls the GPU.
        return int(word) if int(word) in seen else _at_place(seen, int(word))
    uuids = {number: str(node.gpus[number].get("uuid", "")) for number in seen}
    return next((number for number, uuid in uuids.items() if uuid.startswith(word)), None)


def _node(source: NodeSource) -> NodeNow | None:
    sample, facts = source.latest(), source.facts
    if not sample and not facts:
        return None
    return NodeNow(
        node=source.node,
        host=source.host,
        time=finite_number(sample.get("time")) or finite_number(facts.get("time")) or 0.0,
        cpus=whole_number(facts.get("cpus")),
        cpu=finite_number(sample.get("cpu")),
        memory=whole_number(sample.get("memory")),
        memory_limit=whole_number(facts.get("memory_limit"))
        or whole_number(facts.get("memory_total")),
        net_in=finite_number(sample.get("net_in")),
        net_out=finite_number(sample.get("net_out")),
        disk_read=finite_number(sample.get("disk_read")),
        disk_write=finite_number(sample.get("disk_write")),
        gpus=_gpus(source, sample),
    )


def _gpus(source: NodeSource, sample: Mapping[str, Any]) -> list[GpuNow]:
    now = {gpu["gpu"]: gpu for gpu in sample.get("gpus") or ()}
    return [
        _gpu(number, source.gpus.get(number, {}), now.get(number, {}))
        for number in sorted(source.gpus.keys() | now.keys())
    ]


def _gpu(number: int, facts: Mapping[str, Any], now: Mapping[str, Any]) -> GpuNow:
    return GpuNow(
        gpu=number,
        name=str(facts.get("name") or ""),
        uuid=str(facts.get("uuid") or ""),
        use=finite_number(now.get("use")),
        memory=whole_number(now.get("memory")),
        memory_total=whole_number(facts.get("memory_total")),
        power=finite_number(now.get("power")),
        power_limit=finite_number(facts.get("power_limit")),
        temperature=finite_number(now.get("temperature")),
    )


def _length(window: Mapping[str, Any]) -> int:
    found = window.get("step_seconds")
    return len(found) if isinstance(found, list) else 0


def _at(values: object, place: int) -> float | None:
    return (
        finite_number(values[place]) if isinstance(values, list) and place < len(values) else None
    )


def _at_place(values: list[int], place: int) -> int | None:
    return values[place] if place < len(values) else None
