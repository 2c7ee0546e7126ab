"""On what a study was measured: nodes, GPUs, cores."""

from __future__ import annotations

from allranks.observe.scaling.study_file import Study
from allranks.runs.attempt import Attempt
from allranks.runs.node_samples import NodeSource, find_nodes

_NAMED = 6


def hosts_of(attempt: Attempt) -> list[str]:
    """The nodes on which its ranks ran, each once."""
    return sorted({rank.host for rank in attempt.ranks() if rank.host})


def hardware(study: Study) -> str:
    """``node1, node2; NVIDIA H200``; empty when no run tells."""
    hosts: set[str] = set()
    gpus: set[str] = set()
    for point in study.points:
        run = study.run_of(point)
        last = run.last_attempt if run else None
        if last is not None:
            hosts |= set(hosts_of(last))
            gpus |= _gpu_names(last)
    cores = f"{study.machine_cpus} cores" if study.machine_cpus else ""
    many = {point.cpus // point.ranks for point in study.points if point.ranks}
    same = many.pop() if study.where == "local" and len(many) == 1 else 1
    threads = f"{same} threads for each rank" if same > 1 else ""
    return "; ".join(filter(None, [_named(hosts), ", ".join(sorted(gpus)), cores, threads]))


def _named(hosts: set[str]) -> str:
    ordered = sorted(hosts, key=lambda host: (len(host), host))  # node2 before node10
    more = f" and {len(ordered) - _NAMED} more" if len(ordered) > _NAMED else ""
    return ", ".join(ordered[:_NAMED]) + more


def _gpu_names(attempt: Attempt) -> set[str]:
    nodes: dict[int, NodeSource] = {}
    find_nodes(attempt.path, nodes)
    names: set[str] = set()
    for node in nodes.values():
        node.refresh()
        names |= {str(gpu["name"]) for gpu in node.gpus.values() if gpu.get("name")}
    return names
