"""What one job requested, was allocated and used, as plain numbers: bytes, seconds, counts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from allranks.cluster.slurm.job_states import PRECEDENCE, JobState


@dataclass(frozen=True)
class Step:
    """One step of a job: the batch script, or what one srun started."""

    step_id: str
    """``12.batch``, ``12.0``."""
    name: str = ""
    state: JobState = JobState.UNKNOWN
    start: datetime | None = None
    end: datetime | None = None
    seconds: float = 0.0
    nodes: int = 0
    tasks: int = 0
    cpus: int = 0
    gpus: int = 0
    cpu_seconds: float | None = None
    max_rss: int | None = None
    """Bytes that its largest task held at its peak."""
    max_rss_node: str = ""
    energy: float | None = None
    """Joules; None where the site does not measure them."""
    gpu_use: float | None = None
    """From 0 to 1, the mean over its GPUs; None where the site does not record it."""

    @property
    def node_memory(self) -> int | None:
        """At most this was held on one node: each task there as large as the largest."""
        if self.max_rss is None:
            return None
        return self.max_rss * max(1, -(-self.tasks // max(self.nodes, 1)))


@dataclass(frozen=True)
class Usage:
    """One job, array task, or an array or heterogeneous job as a whole."""

    job_id: str
    source: str = "sacct"
    """"sacct", or "scontrol" where there is no accounting: then what was used is not known."""
    name: str = ""
    user: str = ""
    account: str = ""
    partition: str = ""
    state: JobState = JobState.UNKNOWN
    exit_code: int | None = None
    submit: datetime | None = None
    start: datetime | None = None
    end: datetime | None = None
    seconds: float = 0.0
    """How long it ran; the longest of an array's tasks."""
    total_seconds: float = 0.0
    """Of all tasks of an array together; else as ``seconds``."""
    time_limit: int | None = None
    hosts: str = ""
    """Slurm's host list, ``node[1-2]``."""
    nodes: int = 0
    tasks: int = 0
    """Slurm tasks of its largest step (of the job, as long as slurmctld keeps it)."""
    cpus: int = 0
    cpus_per_task: int | None = None
    gpus: int = 0
    gpu_type: str = ""
    memory: int | None = None
    """Bytes on all nodes together."""
    command: str = ""
    """How it was submitted."""
    folder: str = ""
    cpu_seconds: float | None = None
    energy: float | None = None
    steps: Sequence[Step] = ()
    parts: Sequence[Usage] = ()
    """The tasks of an array or the parts of a heterogeneous job."""

    @property
    def mixed(self) -> bool:
        """Whether its parts are those of a heterogeneous job, which differ."""
        return any("+" in part.job_id for part in self.parts)

    @property
    def busy_cpus(self) -> float | None:
        """CPUs kept busy, the mean over its time; of an array that of one task."""
        if self.cpu_seconds is None or self.total_seconds <= 0:
            return None
        return self.cpu_seconds / self.total_seconds

    @property
    def largest(self) -> Step | None:
        """The step whose largest task held most memory."""
        known = [step for step in self.steps if step.max_rss is not None]
        return max(known, key=lambda step: step.max_rss or 0, default=None)

    @property
    def node_memory(self) -> int | None:
        """At most this was held on one node: of steps at the same time, the sum."""
        if self.parts:
            return max((part.node_memory or 0 for part in self.parts), default=0) or None
        return _at_once(self.steps)

    @property
    def gpu_use(self) -> float | None:
        """The mean use of its GPUs, where the site records it: of the step that ran longest."""
        known = [step for step in self.steps if step.gpu_use is not None]
        longest = max(known, key=lambda step: step.seconds, default=None)
        return longest.gpu_use if longest else None

    @property
    def waited(self) -> float | None:
        """Seconds in the queue."""
        if self.submit is None or self.start is None:
            return None
        return max((self.start - self.submit).total_seconds(), 0.0)


def joined(job_id: str, parts: Sequence[Usage]) -> Usage:
    """Return several jobs as one.

    The tasks of an array each request the same, so the whole has the request of one and the mean use of
    all; the parts of a heterogeneous job run side by side and add up.
    """
    lead = min(parts, key=lambda part: PRECEDENCE.index(part.state))
    whole = replace(
        lead,
        job_id=job_id,
        submit=min((part.submit for part in parts if part.submit), default=None),
        start=min((part.start for part in parts if part.start), default=None),
        end=max((part.end for part in parts if part.end), default=None) if lead.end else None,
        seconds=max(part.seconds for part in parts),
        total_seconds=sum(part.seconds for part in parts),
        hosts=",".join(dict.fromkeys(part.hosts for part in parts if part.hosts)),
        exit_code=max(
            (part.exit_code for part in parts if part.exit_code is not None), default=None
        ),
        cpu_seconds=_sum([part.cpu_seconds for part in parts]),
        energy=_sum([part.energy for part in parts]),
        steps=[step for part in parts for step in part.steps],
        parts=tuple(parts),
    )
    return _side_by_side(whole, parts) if whole.mixed else whole


def _side_by_side(whole: Usage, parts: Sequence[Usage]) -> Usage:
    return replace(
        whole,
        total_seconds=whole.seconds,
        nodes=sum(part.nodes for part in parts),
        tasks=sum(part.tasks for part in parts),
        cpus=sum(part.cpus for part in parts),
        cpus_per_task=None,
        gpus=sum(part.gpus for part in parts),
        memory=round(_sum([part.memory for part in parts]) or 0) or None,
    )


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _at_once(steps: Sequence[Step]) -> int | None:
    """Return the largest sum of memory over steps that ran at the same moment."""
    known = [(step, step.node_memory) for step in steps if step.node_memory is not None]
    sums = [sum(held or 0 for other, held in known if _overlap(step, other)) for step, _ in known]
    return max(sums, default=None)


def _overlap(step: Step, other: Step) -> bool:
    """Return whether ``other`` ran when ``step`` began; a step without times counts as running."""
    if step is other or step.start is None or other.start is None:
        return True
    return other.start <= step.start and (other.end is None or step.start < other.end)


_NUMBER = re.compile(r"^(\d+(?:\.\d+)?)([KMGTP]?)[nc]?$")
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}
_SPENT = re.compile(r"^(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)$")
_GPU = re.compile(r"^gres/gpu(?::(?P<type>.+))?$")
_PER_NODE = re.compile(r"gpu(?::(?P<type>[A-Za-z][\w.-]*))?(?:[:=]\d+)?")


def tres(text: str) -> dict[str, str]:
    """Parse trackable resources, ``cpu=8,mem=1200M,gres/gpu=4``, by name."""
    pairs = (word.partition("=") for word in text.split(",") if "=" in word)
    return {name.strip(): value.strip() for name, _, value in pairs}


def size(text: str) -> int | None:
    """Return the bytes in ``1228800K``, ``1.5G``, also the old ``600Mn``; None when it is not a size."""
    match = _NUMBER.match(text.strip())
    return round(float(match[1]) * 1024 ** _POWERS[match[2]]) if match else None


def count(text: str) -> float | None:
    """Return a plain number; Slurm's ``K`` and ``M`` of numbers are powers of 1000."""
    match = _NUMBER.match(text.strip())
    return float(match[1]) * 1000.0 ** _POWERS[match[2]] if match else None


def spent_seconds(text: str) -> float | None:
    """Return the seconds of a CPU time, ``[DD-[HH:]]MM:SS.mmm``."""
    match = _SPENT.match(text.strip())
    if match is None:
        return None
    days, hours, minutes, seconds = match.groups()
    return int(days or 0) * 86400 + int(hours or 0) * 3600 + int(minutes) * 60 + float(seconds)


def gpus(resources: Mapping[str, str]) -> int:
    """Return how many GPUs; the typed entries repeat the plain one."""
    if "gres/gpu" in resources:
        return round(count(resources["gres/gpu"]) or 0)
    typed = [count(value) or 0 for name, value in resources.items() if _GPU.match(name)]
    return round(sum(typed))


def gpu_type(resources: Mapping[str, str]) -> str:
    """Return the type of the GPUs, where the site tracks types: ``a100``; empty otherwise."""
    matches = (_GPU.match(name) for name in resources)
    return ",".join(dict.fromkeys(match["type"] for match in matches if match and match["type"]))


def requested_type(text: str) -> str:
    """Return the type in a request, ``gres:gpu:a100:2`` or ``gres/gpu:a100=2``."""
    match = _PER_NODE.search(text)
    return (match["type"] or "") if match else ""
