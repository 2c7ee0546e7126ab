"""Every number that is exported: its name, its kind, its labels.

The one table: the text for Prometheus, the dashboard and the page about exporters follow from it. Units
are base units: seconds, bytes, watts, degrees Celsius, ratios from 0 to 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from allranks.observe.export import metric_readers as of
from allranks.observe.export.metric_readers import Reader

UNITS = ("seconds", "bytes", "ratio", "watts", "celsius")
RUN_LABELS = ("run", "job_id", "task")
"""The labels that every series has; ``job_id`` on Slurm only, ``task`` of job arrays only. ``job`` is a
word of Prometheus' own."""
RANK = ("rank", "host")
NODE = ("node", "host")
GPU = ("node", "host", "gpu", "rank")


@dataclass(frozen=True)
class Name:
    """One exported name."""

    name: str
    help: str
    read: Reader
    labels: tuple[str, ...] = ()
    """Labels besides the run's."""
    kind: str = "gauge"
    """"gauge", "counter" (its samples end in ``_total``) or "info" (in ``_info``)."""

    @property
    def unit(self) -> str:
        """The unit that its name ends in; empty for a count or a rate."""
        last = self.name.rpartition("_")[2]
        return last if last in UNITS and "_per_" not in self.name else ""

    @property
    def sample(self) -> str:
        """The name of its samples."""
        return self.name + {"counter": "_total", "info": "_info"}.get(self.kind, "")


def _name(name: str, help: str, read: Reader, *labels: str, kind: str = "gauge") -> Name:  # noqa: A002
    return Name(f"allranks_{name}", help, read, labels, kind)


_RUN = (
    _name("run", "What a run is.", of.about, "name", "scheduler", "nodes", kind="info"),
    _name("run_state", "1 for the state that a run is in, 0 for the others.", of.states, "state"),
    _name("start_timestamp_seconds", "When the present attempt began.", of.start),
    _name("observed_timestamp_seconds", "When this was read.", of.of_run("time")),
    _name("last_update_timestamp_seconds", "The newest sample of any node.", of.last_update),
    _name(
        "last_step_timestamp_seconds",
        "The newest line of training steps.",
        of.of_run("progress.last_step_time"),
    ),
    _name("step", "Optimizer steps done.", of.of_run("progress.step")),
    _name("total_steps", "Steps to be done.", of.of_run("progress.total_steps")),
    _name("saved_step", "The step of the newest checkpoint.", of.of_run("progress.saved_step")),
    _name("epoch", "The present epoch.", of.of_run("progress.epoch")),
    _name("epochs", "Epochs to be done.", of.of_run("progress.epochs")),
    _name("progress_ratio", "Steps done of all.", of.of_run("progress.share")),
    _name("remaining_seconds", "Until the last step.", of.of_run("progress.eta_seconds")),
    _name("deadline_timestamp_seconds", "When the job ends.", of.of_run("progress.deadline")),
)
_TRAINING = (
    _name("metric", "The latest of each metric of the training.", of.metrics, "name"),
    _name("learning_rate", "Learning rates.", of.rates, "name"),
    _name("samples_per_second", "Over all ranks.", of.of_values("samples_per_second")),
    _name("tokens_per_second", "Over all ranks.", of.of_values("tokens_per_second")),
    _name(
        "model_flops_per_second",
        "Floating-point operations of the model, over all ranks.",
        of.of_values("flops_per_second"),
    ),
    _name("mfu_ratio", "Those of the peak of the GPUs.", of.of_values("mfu")),
    _name("step_seconds", "A step, the mean over ranks.", of.of_values("step_seconds")),
    _name("step_phase_seconds", "What a step's time goes to.", of.phases, "phase"),
)
_RANKS = (
    _name("rank_step_seconds", "A step of that rank.", of.of_ranks("step_seconds"), *RANK),
    _name("rank_data_seconds", "Of it waiting for data.", of.of_ranks("data_seconds"), *RANK),
    _name(
        "rank_compute_seconds",
        "Of it forward, backward and optimizer.",
        of.of_ranks("compute_seconds"),
        *RANK,
    ),
    _name(
        "rank_communication_seconds",
        "Of it waiting for other ranks and the network.",
        of.of_ranks("communication_seconds"),
        *RANK,
    ),
    _name(
        "rank_behind_ratio",
        "By which share its own work takes longer than the median of the others.",
        of.of_ranks("behind"),
        *RANK,
    ),
    _name("rank_straggler", "1 when the others wait for it.", of.of_ranks("straggler"), *RANK),
    _name("rank_failed", "1 when it failed.", of.of_ranks("failed"), *RANK),
)
_NODES = (
    _name("node_cpus", "CPUs that the ranks may use.", of.of_nodes("cpus"), *NODE),
    _name("node_cpus_busy", "CPUs that they keep busy.", of.of_nodes("cpu"), *NODE),
    _name("node_memory_bytes", "Memory that they hold.", of.of_nodes("memory"), *NODE),
    _name(
        "node_memory_limit_bytes", "Memory that they may hold.", of.of_nodes("memory_limit"), *NODE
    ),
    _name("node_network_receive_bytes_per_second", "Into the node.", of.of_nodes("net_in"), *NODE),
    _name(
        "node_network_transmit_bytes_per_second", "Out of the node.", of.of_nodes("net_out"), *NODE
    ),
    _name("node_disk_read_bytes_per_second", "Read by the ranks.", of.of_nodes("disk_read"), *NODE),
    _name(
        "node_disk_write_bytes_per_second",
        "Written by the ranks.",
        of.of_nodes("disk_write"),
        *NODE,
    ),
)
_GPUS = (
    _name("gpu_use_ratio", "Share of the time in which a kernel ran.", of.of_gpus("use"), *GPU),
    _name("gpu_memory_bytes", "Memory in use.", of.of_gpus("memory"), *GPU),
    _name("gpu_memory_total_bytes", "Memory that it has.", of.of_gpus("memory_total"), *GPU),
    _name("gpu_power_watts", "Power that it draws.", of.of_gpus("power"), *GPU),
    _name("gpu_power_limit_watts", "Power that it may draw.", of.of_gpus("power_limit"), *GPU),
    _name("gpu_temperature_celsius", "Its temperature.", of.of_gpus("temperature"), *GPU),
)
_ATTEMPTS = (
    _name("attempts", "Attempts so far.", of.of_run("status.attempts"), kind="counter"),
    _name(
        "attempt_seconds",
        "How long an attempt held its nodes.",
        of.attempt_seconds,
        "attempt",
        "outcome",
    ),
    _name("goodput_ratio", "Useful of allocated time.", of.goodput("share")),
    _name("useful_seconds", "Time that moved the model forward.", of.goodput("useful")),
    _name("allocated_seconds", "Time that nodes were held.", of.goodput("allocated")),
)

NAMES = (*_RUN, *_TRAINING, *_RANKS, *_NODES, *_GPUS, *_ATTEMPTS)
"""All of them, in the order in which they are written."""
