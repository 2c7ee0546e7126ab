"""The classes of a RunView: everything that a view of a run shows, as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from allranks.runs.attempt import Failure
from allranks.runs.attempt_history import AttemptSummary, Goodput
from allranks.schedulers.run_state import RunStatus

PHASES = ("data", "forward", "backward", "communication", "optimizer", "checkpoint", "other")
"""What the time of a step goes to, in the order in which it is shown."""
TIMINGS = frozenset({"step_seconds", "epoch_seconds", *(f"{name}_seconds" for name in PHASES)})
"""Metrics of ours that are times; all others that end so are the user's own."""


@dataclass(frozen=True)
class GpuNow:
    """One GPU in its latest sample."""

    gpu: int
    """Its number on the node."""
    name: str = ""
    uuid: str = ""
    use: float | None = None
    """From 0 to 1: the share of the time in which a kernel ran."""
    memory: int | None = None
    """Bytes."""
    memory_total: int | None = None
    power: float | None = None
    """Watts."""
    power_limit: float | None = None
    temperature: float | None = None
    """Degrees Celsius."""


@dataclass(frozen=True)
class NodeNow:
    """One node in its latest sample."""

    node: int
    host: str
    time: float
    """When it was sampled, in seconds since 1970."""
    cpus: int | None = None
    """CPUs that the ranks may use there."""
    cpu: float | None = None
    """CPUs that they kept busy: 3.5 is three and a half."""
    memory: int | None = None
    """Bytes that they hold."""
    memory_limit: int | None = None
    net_in: float | None = None
    """Bytes a second."""
    net_out: float | None = None
    disk_read: float | None = None
    disk_write: float | None = None
    gpus: Sequence[GpuNow] = ()


@dataclass(frozen=True)
class RankNow:
    """One rank in the latest window of steps."""

    rank: int
    host: str = ""
    gpu: GpuNow | None = None
    step_seconds: float | None = None
    data_seconds: float | None = None
    compute_seconds: float | None = None
    """Forward, backward and optimizer."""
    communication_seconds: float | None = None
    """Waiting for the other ranks and for the network."""
    behind: float | None = None
    """By which share its own work takes longer than the median of the others, over the last windows:
    0.3 is 30 %."""
    straggler: bool = False
    """Whether the others wait for it."""
    failed: bool = False


@dataclass(frozen=True)
class TrainingProgress:
    """The progress of the training."""

    step: int | None = None
    total_steps: int | None = None
    epoch: int | None = None
    epochs: int | None = None
    eta_seconds: float | None = None
    """Until the last step at the present pace; None when it has stopped moving."""
    saved_step: int | None = None
    deadline: float | None = None
    """When the job ends, in seconds since 1970."""
    last_step_time: float | None = None
    """When the newest line of training steps was written."""
    stalled_seconds: float | None = None
    """For how long nothing has been heard of the training; None while that is not unusual."""

    @property
    def share(self) -> float | None:
        """Return the share from 0 to 1; None when the total is unknown."""
        if self.step is None or not self.total_steps:
            return None
        return min(self.step / self.total_steps, 1.0)


@dataclass(frozen=True)
class Diagnostic:
    """A failure of the run, or a finding of lint or check without its source text."""

    source: str
    """"lint", "check" or "run"."""
    severity: str
    """"error", "warning" or "note"."""
    title: str
    message: str
    help: str = ""
    """What to type."""
    rule: str = ""
    line: int | None = None


@dataclass(frozen=True)
class RunView:
    """A run at one moment."""

    status: RunStatus
    progress: TrainingProgress
    values: Mapping[str, float] = field(default_factory=dict)
    """The latest of each metric: train_loss, lr, samples_per_second, tokens_per_second, mfu …"""
    loss: Sequence[tuple[float, float]] = ()
    """(step, train_loss), thinned."""
    val_loss: Sequence[tuple[float, float]] = ()
    phases: Mapping[str, float] = field(default_factory=dict)
    """Seconds of a step by phase (PHASES), the mean over ranks and the last windows."""
    nodes: Sequence[NodeNow] = ()
    ranks: Sequence[RankNow] = ()
    attempts: Sequence[AttemptSummary] = ()
    goodput: Goodput | None = None
    error: Failure | None = None
    """The failure that the others most likely follow from, of the last attempt."""
    last_lines: Sequence[str] = ()
    """The last lines that its ranks wrote."""
    time: float = 0.0
    """When this was taken."""
    trainer: bool = False
    """Whether it trains with a Trainer, which reports its steps."""
    task: str = ""
    """Which task of a job array it is; all else is of this task. Empty when it is none."""
    failed_tasks: Sequence[str] = ()
    """The tasks of the array that failed and will not be requeued."""
    running_tasks: Sequence[str] = ()
    """Those that have begun and not ended."""
