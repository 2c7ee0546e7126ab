"""Every exported metric: its name, kind, labels, and how it is read from a RunView.

The text for Prometheus, the Grafana dashboard and the page about exporters follow from this table. Units
are base units: seconds, bytes, watts, degrees Celsius, ratios from 0 to 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter

from allranks.cluster.slurm.job_states import JobState
from allranks.observe.view.model import PHASES, GpuNow, NodeNow, RankNow, RunView

Labels = dict[str, str]
Sample = tuple[Labels, float | None]
Reader = Callable[[RunView], Iterator[Sample]]
"""The values of one name in a run_view, each with its labels; None is left out."""

SEPARATE_METRICS = frozenset(
    {
        *("lr", "epoch", "samples_per_second", "tokens_per_second", "flops_per_second", "mfu"),
        *("step_seconds", *(f"{phase}_seconds" for phase in PHASES)),
    }
)
"""Metrics that are exported under names of their own."""


def run_value(path: str) -> Reader:
    """Read one value per run, by its path in the RunView."""
    get = attrgetter(path)

    def read(run_view: RunView) -> Iterator[Sample]:
        yield {}, get(run_view)

    return read


def metric_value(key: str) -> Reader:
    """Read the latest value of one metric."""

    def read(run_view: RunView) -> Iterator[Sample]:
        yield {}, run_view.values.get(key)

    return read


def rank_values(field: str) -> Reader:
    """Read a field of each rank."""

    def read(run_view: RunView) -> Iterator[Sample]:
        for rank in run_view.ranks:
            yield _rank_labels(rank), getattr(rank, field)

    return read


def node_values(field: str) -> Reader:
    """Read a field of each node."""

    def read(run_view: RunView) -> Iterator[Sample]:
        for node in run_view.nodes:
            yield _node_labels(node), getattr(node, field)

    return read


def gpu_values(field: str) -> Reader:
    """Read a field of each GPU, with the rank that uses it where that is known."""

    def read(run_view: RunView) -> Iterator[Sample]:
        ranks = {_gpu_key(rank.host, rank.gpu): rank for rank in run_view.ranks if rank.gpu}
        for node in run_view.nodes:
            for gpu in node.gpus:
                yield _gpu_labels(node, gpu, ranks), getattr(gpu, field)

    return read


def _rank_labels(rank: RankNow) -> Labels:
    return {"rank": str(rank.rank), "host": rank.host}


def _node_labels(node: NodeNow) -> Labels:
    return {"node": str(node.node), "host": node.host}


def _gpu_key(host: str, gpu: GpuNow) -> str:
    """Identify a GPU by its uuid, else by its host and number."""
    return gpu.uuid or f"{host} {gpu.gpu}"


def _gpu_labels(node: NodeNow, gpu: GpuNow, ranks: Mapping[str, RankNow]) -> Labels:
    rank = ranks.get(_gpu_key(node.host, gpu))
    known = {"rank": str(rank.rank)} if rank else {}
    return {**_node_labels(node), "gpu": str(gpu.gpu), **known}


def run_info(run_view: RunView) -> Iterator[Sample]:
    """Yield the run's description as labels."""
    run = run_view.status.run
    yield {"name": run.name, "scheduler": run.scheduler, "nodes": run_view.status.nodes}, 1


def state_series(run_view: RunView) -> Iterator[Sample]:
    """Yield one series per state, 1 for the current one."""
    for state in JobState:
        yield {"state": state.value}, float(run_view.status.state is state)


def attempt_start(run_view: RunView) -> Iterator[Sample]:
    """Yield the start of the current attempt."""
    start = run_view.status.start
    yield {}, start.timestamp() if start else None


def phase_seconds(run_view: RunView) -> Iterator[Sample]:
    """Yield the seconds of a step by phase."""
    for phase in PHASES:
        yield {"phase": phase}, run_view.phases.get(phase)


def training_metrics(run_view: RunView) -> Iterator[Sample]:
    """Yield the metrics of the training that have no name of their own here."""
    for name, value in run_view.values.items():
        if name not in SEPARATE_METRICS and not name.startswith("lr_"):
            yield {"name": name}, value


def learning_rates(run_view: RunView) -> Iterator[Sample]:
    """Yield the learning rates."""
    for name, value in run_view.values.items():
        if name == "lr" or name.startswith("lr_"):
            yield {"name": name}, value


def goodput_value(field: str) -> Reader:
    """Read a field of the goodput."""

    def read(run_view: RunView) -> Iterator[Sample]:
        yield {}, getattr(run_view.goodput, field) if run_view.goodput else None

    return read


def attempt_seconds(run_view: RunView) -> Iterator[Sample]:
    """Yield the time that each attempt held its nodes."""
    for entry in run_view.attempts:
        yield {"attempt": str(entry.attempt.number), "outcome": entry.outcome}, entry.seconds


def last_update(run_view: RunView) -> Iterator[Sample]:
    """Yield the time of the newest sample of any node."""
    yield {}, max((node.time for node in run_view.nodes), default=None)


UNITS = ("seconds", "bytes", "ratio", "watts", "celsius")
RUN_LABELS = ("run", "job_id", "task")
"""The labels that every series has; ``job_id`` on Slurm only, ``task`` of job arrays only. ``job`` is a
word of Prometheus' own."""
RANK = ("rank", "host")
NODE = ("node", "host")
GPU = ("node", "host", "gpu", "rank")


@dataclass(frozen=True)
class ExportedMetric:
    """One exported metric."""

    name: str
    help: str
    read: Reader
    labels: tuple[str, ...] = ()
    """Labels besides the run's."""
    kind: str = "gauge"
    """"gauge", "counter" (its samples end in ``_total``) or "info" (in ``_info``)."""

    @property
    def unit(self) -> str:
        """Return the unit that the name ends in; empty for a count or a rate."""
        last = self.name.rpartition("_")[2]
        return last if last in UNITS and "_per_" not in self.name else ""

    @property
    def sample(self) -> str:
        """Return the name of its samples."""
        return self.name + {"counter": "_total", "info": "_info"}.get(self.kind, "")


def _metric(
    name: str, description: str, read: Reader, *labels: str, kind: str = "gauge"
) -> ExportedMetric:
    return ExportedMetric(f"allranks_{name}", description, read, labels, kind)


_RUN = (
    _metric(
        "run",
        "Name, scheduler and nodes of a run.",
        run_info,
        "name",
        "scheduler",
        "nodes",
        kind="info",
    ),
    _metric("run_state", "1 for the state of the run, 0 for the others.", state_series, "state"),
    _metric("start_timestamp_seconds", "Start of the current attempt.", attempt_start),
    _metric("observed_timestamp_seconds", "Time of this observation.", run_value("time")),
    _metric("last_update_timestamp_seconds", "Time of the newest sample of any node.", last_update),
    _metric(
        "last_step_timestamp_seconds",
        "Time of the newest training step reported.",
        run_value("progress.last_step_time"),
    ),
    _metric("step", "Optimizer steps done.", run_value("progress.step")),
    _metric("total_steps", "Total optimizer steps.", run_value("progress.total_steps")),
    _metric("saved_step", "The step of the newest checkpoint.", run_value("progress.saved_step")),
    _metric("epoch", "Current epoch.", run_value("progress.epoch")),
    _metric("epochs", "Total epochs.", run_value("progress.epochs")),
    _metric("progress_ratio", "Share of the steps done.", run_value("progress.share")),
    _metric(
        "remaining_seconds",
        "Estimated time until the last step.",
        run_value("progress.eta_seconds"),
    ),
    _metric("deadline_timestamp_seconds", "Time limit of the job.", run_value("progress.deadline")),
)
_TRAINING = (
    _metric("metric", "Latest value of each training metric.", training_metrics, "name"),
    _metric("learning_rate", "Learning rates.", learning_rates, "name"),
    _metric("samples_per_second", "Over all ranks.", metric_value("samples_per_second")),
    _metric("tokens_per_second", "Over all ranks.", metric_value("tokens_per_second")),
    _metric(
        "model_flops_per_second",
        "Floating-point operations of the model, over all ranks.",
        metric_value("flops_per_second"),
    ),
    _metric(
        "mfu_ratio", "Model FLOPs utilization: share of the peak of the GPUs.", metric_value("mfu")
    ),
    _metric("step_seconds", "Time of a step, mean over ranks.", metric_value("step_seconds")),
    _metric("step_phase_seconds", "Time of a step by phase.", phase_seconds, "phase"),
)
_RANKS = (
    _metric("rank_step_seconds", "Time of a step of the rank.", rank_values("step_seconds"), *RANK),
    _metric(
        "rank_data_seconds", "Time of a step waiting for data.", rank_values("data_seconds"), *RANK
    ),
    _metric(
        "rank_compute_seconds",
        "Time of a step in forward, backward and optimizer.",
        rank_values("compute_seconds"),
        *RANK,
    ),
    _metric(
        "rank_communication_seconds",
        "Time of a step waiting for other ranks and the network.",
        rank_values("communication_seconds"),
        *RANK,
    ),
    _metric(
        "rank_behind_ratio",
        "Share by which the rank's own work takes longer than the median of the others.",
        rank_values("behind"),
        *RANK,
    ),
    _metric("rank_straggler", "1 if the other ranks wait for it.", rank_values("straggler"), *RANK),
    _metric("rank_failed", "1 if the rank failed.", rank_values("failed"), *RANK),
)
_NODES = (
    _metric("node_cpus", "CPUs available to the ranks.", node_values("cpus"), *NODE),
    _metric("node_cpus_busy", "CPUs that the ranks keep busy.", node_values("cpu"), *NODE),
    _metric("node_memory_bytes", "Memory used by the ranks.", node_values("memory"), *NODE),
    _metric(
        "node_memory_limit_bytes",
        "Memory limit of the ranks.",
        node_values("memory_limit"),
        *NODE,
    ),
    _metric(
        "node_network_receive_bytes_per_second",
        "Network traffic into the node.",
        node_values("net_in"),
        *NODE,
    ),
    _metric(
        "node_network_transmit_bytes_per_second",
        "Network traffic out of the node.",
        node_values("net_out"),
        *NODE,
    ),
    _metric(
        "node_disk_read_bytes_per_second", "Read by the ranks.", node_values("disk_read"), *NODE
    ),
    _metric(
        "node_disk_write_bytes_per_second",
        "Written by the ranks.",
        node_values("disk_write"),
        *NODE,
    ),
)
_GPUS = (
    _metric("gpu_use_ratio", "Share of the time in which a kernel ran.", gpu_values("use"), *GPU),
    _metric("gpu_memory_bytes", "Memory in use.", gpu_values("memory"), *GPU),
    _metric("gpu_memory_total_bytes", "Total memory of the GPU.", gpu_values("memory_total"), *GPU),
    _metric("gpu_power_watts", "Power draw.", gpu_values("power"), *GPU),
    _metric("gpu_power_limit_watts", "Power limit.", gpu_values("power_limit"), *GPU),
    _metric("gpu_temperature_celsius", "Temperature.", gpu_values("temperature"), *GPU),
)
_ATTEMPTS = (
    _metric("attempts", "Attempts so far.", run_value("status.attempts"), kind="counter"),
    _metric(
        "attempt_seconds",
        "Time that an attempt held its nodes.",
        attempt_seconds,
        "attempt",
        "outcome",
    ),
    _metric("goodput_ratio", "Useful share of the allocated time.", goodput_value("share")),
    _metric("useful_seconds", "Time that moved the model forward.", goodput_value("useful")),
    _metric("allocated_seconds", "Time that nodes were allocated.", goodput_value("allocated")),
)

EXPORTED_METRICS = (*_RUN, *_TRAINING, *_RANKS, *_NODES, *_GPUS, *_ATTEMPTS)
"""All of them, in the order in which they are written."""
