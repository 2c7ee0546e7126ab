"""Where the exported numbers stand in a snapshot: one small reader for each kind of place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter

from allranks.cluster.slurm.job_states import JobState
from allranks.observe.view.model import PHASES, GpuNow, NodeNow, RankNow, RunView

Labels = dict[str, str]
Sample = tuple[Labels, float | None]
Reader = Callable[[RunView], Iterator[Sample]]
"""The values of one name in a snapshot, each with its labels; None is left out."""

OWN_NAMES = frozenset(
    {
        *("lr", "epoch", "samples_per_second", "tokens_per_second", "flops_per_second", "mfu"),
        *("step_seconds", *(f"{phase}_seconds" for phase in PHASES)),
    }
)
"""Metrics that are exported under names of their own."""


def of_run(path: str) -> Reader:
    """One value a run, by its path in the snapshot."""
    get = attrgetter(path)

    def read(snapshot: RunView) -> Iterator[Sample]:
        yield {}, get(snapshot)

    return read


def of_values(key: str) -> Reader:
    """The latest of one metric."""

    def read(snapshot: RunView) -> Iterator[Sample]:
        yield {}, snapshot.values.get(key)

    return read


def of_ranks(field: str) -> Reader:
    """A field of each rank."""

    def read(snapshot: RunView) -> Iterator[Sample]:
        for rank in snapshot.ranks:
            yield _rank_labels(rank), getattr(rank, field)

    return read


def of_nodes(field: str) -> Reader:
    """A field of each node."""

    def read(snapshot: RunView) -> Iterator[Sample]:
        for node in snapshot.nodes:
            yield _node_labels(node), getattr(node, field)

    return read


def of_gpus(field: str) -> Reader:
    """A field of each GPU, with the rank that uses it where that is known."""

    def read(snapshot: RunView) -> Iterator[Sample]:
        ranks = {_place(rank.host, rank.gpu): rank for rank in snapshot.ranks if rank.gpu}
        for node in snapshot.nodes:
            for gpu in node.gpus:
                yield _gpu_labels(node, gpu, ranks), getattr(gpu, field)

    return read


def _rank_labels(rank: RankNow) -> Labels:
    return {"rank": str(rank.rank), "host": rank.host}


def _node_labels(node: NodeNow) -> Labels:
    return {"node": str(node.node), "host": node.host}


def _place(host: str, gpu: GpuNow) -> str:
    """What tells a GPU apart: its own id, else its host and number."""
    return gpu.uuid or f"{host} {gpu.gpu}"


def _gpu_labels(node: NodeNow, gpu: GpuNow, ranks: Mapping[str, RankNow]) -> Labels:
    rank = ranks.get(_place(node.host, gpu))
    known = {"rank": str(rank.rank)} if rank else {}
    return {**_node_labels(node), "gpu": str(gpu.gpu), **known}


def about(snapshot: RunView) -> Iterator[Sample]:
    """What a run is, as labels."""
    run = snapshot.status.run
    yield {"name": run.name, "scheduler": run.scheduler, "nodes": snapshot.status.nodes}, 1


def states(snapshot: RunView) -> Iterator[Sample]:
    """One series a state, 1 for the one that it is in."""
    for state in JobState:
        yield {"state": state.value}, float(snapshot.status.state is state)


def start(snapshot: RunView) -> Iterator[Sample]:
    """When the present attempt began."""
    start = snapshot.status.start
    yield {}, start.timestamp() if start else None


def phases(snapshot: RunView) -> Iterator[Sample]:
    """What a step's time goes to."""
    for phase in PHASES:
        yield {"phase": phase}, snapshot.phases.get(phase)


def metrics(snapshot: RunView) -> Iterator[Sample]:
    """The training's own; what has a name of its own here is not said twice."""
    for name, value in snapshot.values.items():
        if name not in OWN_NAMES and not name.startswith("lr_"):
            yield {"name": name}, value


def rates(snapshot: RunView) -> Iterator[Sample]:
    """Learning rates."""
    for name, value in snapshot.values.items():
        if name == "lr" or name.startswith("lr_"):
            yield {"name": name}, value


def goodput(field: str) -> Reader:
    """A field of the goodput."""

    def read(snapshot: RunView) -> Iterator[Sample]:
        yield {}, getattr(snapshot.goodput, field) if snapshot.goodput else None

    return read


def attempt_seconds(snapshot: RunView) -> Iterator[Sample]:
    """How long each attempt held its nodes."""
    for entry in snapshot.attempts:
        yield {"attempt": str(entry.attempt.number), "outcome": entry.outcome}, entry.seconds


def last_update(snapshot: RunView) -> Iterator[Sample]:
    """The newest sample of any node."""
    yield {}, max((node.time for node in snapshot.nodes), default=None)
