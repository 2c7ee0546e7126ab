"""The facts of a report as plain values: gathered once, then judged and shown.

Sizes are bytes, times seconds, shares from 0 to 1. None is "not known", on which no advice is built.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median

from allranks.observe.view.model import Diagnostic


@dataclass(frozen=True)
class RequestedResources:
    """What the job requested; where it left that open, what it was allocated."""

    nodes: int | None = None
    ranks: int | None = None
    ranks_per_node: int | None = None
    tasks_per_node: int | None = None
    """Slurm tasks; one that starts all ranks of its node counts once."""
    cpus_per_task: int | None = None
    cpus_per_node: int | None = None
    memory_per_node: int | None = None
    gpus_per_node: int | None = None
    gpus: int | None = None
    """On all nodes together: not every node of a job need have as many."""
    gpu_type: str = ""
    time_limit: int | None = None
    partition: str = ""
    account: str = ""
    exclusive: bool = False
    """Whole nodes: then asking for less of one frees nothing."""
    memory_is_all: bool = False

    @property
    def has_gpus(self) -> bool:
        """Return whether it requested any GPU."""
        return bool(self.gpus or self.gpus_per_node)


@dataclass(frozen=True)
class GpuUsed:
    """One GPU over the whole run."""

    node: int
    host: str
    gpu: int
    name: str = ""
    use: float | None = None
    """The mean share of the time in which a kernel ran."""
    memory: int | None = None
    """At its peak."""
    memory_total: int | None = None
    power: float | None = None
    """Watts, the mean."""
    power_limit: float | None = None
    temperature: float | None = None
    """°C, the level that it was above for a twentieth of the time."""


@dataclass(frozen=True)
class UsedResources:
    """What was measured, by the sampler of the run or by Slurm's accounting."""

    source: str = ""
    """"samples", "accounting" or empty: nothing is known."""
    seconds: float = 0.0
    """How long the measured time was."""
    samples: int = 0
    """Per node, at least."""
    cpus: float | None = None
    """CPUs kept busy on the busiest node, the mean."""
    cpus_high: float | None = None
    """On the busiest node, the level that was exceeded for a twentieth of the time only."""
    cpus_host: str = ""
    cpus_allowed: int | None = None
    """CPUs that the ranks might use on a node."""
    cpus_total: int | None = None
    """CPUs that the node has."""
    memory: int | None = None
    """Bytes on the node that held most, at its peak."""
    memory_at_most: bool = False
    """It is an upper bound: accounting knows the largest task, not the sum over a node."""
    memory_host: str = ""
    memory_limit: int | None = None
    """What the node would have allowed."""
    memory_total: int | None = None
    """What the node has."""
    net: float | None = None
    """Bytes a second in and out of the busiest node, the mean."""
    disk: float | None = None
    energy: float | None = None
    """Joules: of the GPUs where they were sampled, else what Slurm measured."""
    gpus: Sequence[GpuUsed] = ()

    @property
    def gpu_use(self) -> float | None:
        """Return the mean over all GPUs."""
        known = [gpu.use for gpu in self.gpus if gpu.use is not None]
        return sum(known) / len(known) if known else None

    @property
    def gpu_memory(self) -> float | None:
        """Return the fullest GPU's share of its memory."""
        shares = [gpu.memory / gpu.memory_total for gpu in self.gpus
                  if gpu.memory is not None and gpu.memory_total]  # fmt: skip
        return max(shares, default=None)

    @property
    def power_limit(self) -> float | None:
        """Return the median power limit of the GPUs in watts."""
        known = [gpu.power_limit for gpu in self.gpus if gpu.power_limit]
        return median(known) if known else None


@dataclass(frozen=True)
class SlowRank:
    """A rank that the others waited for."""

    rank: int
    host: str
    behind: float
    """By which share its own work took longer than the median of the others'."""
    node_is_slow: bool = False
    """It is its node: that was slow with other ranks too, or the rank was not on another node."""


@dataclass(frozen=True)
class AttemptFacts:
    """One attempt."""

    number: int
    job_id: str
    start: datetime | None
    seconds: float
    hosts: Sequence[str]
    first_step: int | None
    last_step: int | None
    kept_step: int | None
    outcome: str
    reason: str
    lost_steps: int = 0
    """Steps that were done again by the next attempt, or never."""
    useful: float = 0.0


@dataclass(frozen=True)
class Error:
    """The first failure, most likely the cause of the others."""

    rank: int
    host: str = ""
    exit_code: int | None = None
    signal: str = ""
    traceback: str = ""


@dataclass(frozen=True)
class RunFacts:
    """All facts of a run or job that a report shows."""

    name: str
    id: str
    """The run's, or ``job 12345``."""
    kind: str
    """"run", or "job": one that allranks did not start."""
    state: str
    ended: bool = True
    exit_code: int | None = None
    why: str = ""
    task: str = ""
    """Which task of a job array this is; empty of an array as a whole, and of what is none."""
    tasks: Mapping[str, str] = field(default_factory=dict)
    """How each task of the array stands that has begun: ``failed``, ``timed out``, ``running``."""
    job_ids: Sequence[str] = ()
    scheduler: str = ""
    folder: str = ""
    launcher: str = ""
    framework: str = ""
    user: str = ""
    hosts: Sequence[str] = ()
    submitted: datetime | None = None
    start: datetime | None = None
    end: datetime | None = None
    seconds: float = 0.0
    """How long it held its nodes, all attempts together."""
    waited: float | None = None
    requested: RequestedResources = field(default_factory=RequestedResources)
    used: UsedResources = field(default_factory=UsedResources)
    mixed: bool = False
    """All parts of a heterogeneous job: means over unlike nodes, on which no advice is built."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """Seconds of a step by what they went to."""
    values: Mapping[str, float] = field(default_factory=dict)
    """The latest of each metric."""
    typical: Mapping[str, float] = field(default_factory=dict)
    """The median over the run: samples_per_second, tokens_per_second, mfu, step_seconds."""
    best: Mapping[str, float] = field(default_factory=dict)
    """The lowest loss of training and validation."""
    diverged: Mapping[str, int] = field(default_factory=dict)
    """The losses that are NaN or infinite to the end, each with the step since which it is."""
    step: int | None = None
    total_steps: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    """The Trainer's that matter here: precision, compile, accumulate, checkpoint_async …"""
    slow: Sequence[SlowRank] = ()
    attempts: Sequence[AttemptFacts] = ()
    goodput: float | None = None
    useful: float = 0.0
    error: Error | None = None
    findings: Sequence[Diagnostic] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that change how a training runs; secrets are not among them."""
    plan_values: Sequence[tuple[str, str, str]] = ()
    """(name, value, where it came from) of the plan."""
    original_command: Sequence[str] = ()
    """Commands that start it again."""
    exact_command: Sequence[str] = ()
    """Commands in place of these, that start it exactly as it was settled."""
    limitations: Sequence[str] = ()
    """What limits this report, in sentences."""
    time: datetime | None = None
    """When it was made."""

    @property
    def killed(self) -> bool:
        """Return whether it was killed from outside, before anything could be recorded."""
        return (
            self.state == "failed" and bool(self.attempts) and self.attempts[-1].outcome == "killed"
        )

    @property
    def step_seconds(self) -> float:
        """Return the time of a step, the sum of its phases."""
        return sum(self.phases.values())

    def share(self, phase: str) -> float | None:
        """Return the share of a step that a phase takes; None when steps were not measured."""
        whole = self.step_seconds
        return self.phases.get(phase, 0.0) / whole if whole > 0 else None

    @property
    def on_slurm(self) -> bool:
        """Whether the run was a job of Slurm."""
        return self.scheduler == "slurm"
