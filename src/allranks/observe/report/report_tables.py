"""Tables of a report, the same for HTML and Markdown: resources, request, attempts, GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from allranks.core.formatting import percent, size, span, three
from allranks.observe.pages.documents import TextTable
from allranks.observe.report.advice.base import format_count
from allranks.observe.report.model import RunFacts


@dataclass(frozen=True)
class ResourceUse:
    """What was used of what was requested."""

    title: str
    used: str
    requested: str
    share: float | None = None
    """Used over asked."""
    about: str = ""


def request_title(facts: RunFacts) -> str:
    """Return the title of the requested resources; without Slurm nothing is requested."""
    return "Requested" if facts.on_slurm else "Had"


def resource_uses(facts: RunFacts) -> list[ResourceUse]:
    """Return requested against used resources, per node; unknown ones are left out."""
    found = [_cpu_use(facts), _memory_use(facts), *_gpu_uses(facts), _time_use(facts)]
    return [each for each in found if each is not None]


def _cpu_use(facts: RunFacts) -> ResourceUse | None:
    used = facts.used
    if used.cpus is None:
        return None
    has = facts.requested.cpus_per_node or used.cpus_allowed
    busy = used.cpus if used.cpus_high is None else used.cpus_high
    mean = "in the mean" if used.cpus_high is None else f"mean {three(round(used.cpus, 2))}"
    where = f"on {used.cpus_host}" if used.cpus_host and (facts.requested.nodes or 1) > 1 else ""
    share = _over(busy, has)
    return ResourceUse(
        "CPUs of a node", three(round(busy, 2)), str(has or "?"), share, _about(share, where, mean)
    )


def _memory_use(facts: RunFacts) -> ResourceUse | None:
    used = facts.used
    if used.memory is None:
        return None
    limit = facts.requested.memory_per_node or used.memory_limit
    where = f"on {used.memory_host}" if used.memory_host else ""
    share = _over(used.memory, limit)
    about = _about(share, where, "at most" if used.memory_at_most else "at its peak")
    return ResourceUse(
        "Memory of a node", size(used.memory), size(limit) if limit else "?", share, about
    )


def _gpu_uses(facts: RunFacts) -> Iterator[ResourceUse]:
    used = facts.used
    if used.gpu_use is not None:
        count = format_count(len(used.gpus), "GPU")
        yield ResourceUse(
            "GPU time", percent(used.gpu_use), count, used.gpu_use, "with a kernel running"
        )
    if used.gpu_memory is not None:
        total = max((gpu.memory_total or 0 for gpu in used.gpus), default=0)
        about = _about(used.gpu_memory, "", "the fullest, at its peak")
        held = size(used.gpu_memory * total)
        yield ResourceUse("GPU memory", held, size(total), used.gpu_memory, about)


def _time_use(facts: RunFacts) -> ResourceUse | None:
    limit = facts.requested.time_limit
    if not limit or not facts.seconds:
        return None
    longest = max((attempt.seconds for attempt in facts.attempts), default=facts.seconds)
    which = "the longest attempt" if len(facts.attempts) > 1 else ""
    share = _over(longest, limit)
    return ResourceUse("Time", span(longest), span(limit), share, _about(share, "", which))


def _about(share: float | None, *words: str) -> str:
    shown = percent(share) if share is not None else ""
    return ", ".join(each for each in (shown, *words) if each)


def _over(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


_MOST_GPUS = 64
_MOST_HOSTS = 16


def request_rows(facts: RunFacts) -> list[tuple[str, str]]:
    """Return what was requested and where it ran, as text."""
    asked = facts.requested
    gpus = str(asked.gpus_per_node or "")
    if gpus and asked.gpu_type:
        gpus = f"{gpus} × {asked.gpu_type}"
    memory = (
        "all of the node"
        if asked.memory_is_all
        else size(asked.memory_per_node)
        if asked.memory_per_node
        else ""
    )
    pairs = [
        ("Nodes", str(asked.nodes or "")),
        ("Ranks", str(asked.ranks or "")),
        ("GPUs per node", gpus),
        ("GPUs", str(asked.gpus or "") if asked.gpus_per_node is None else ""),
        ("Tasks per node", str(asked.tasks_per_node or "") if facts.kind == "job" else ""),
        ("CPUs per task", str(asked.cpus_per_task or "")),
        ("CPUs per node", str(asked.cpus_per_node or "")),
        ("Memory per node", memory),
        ("Time limit", span(asked.time_limit) if asked.time_limit else ""),
        ("Partition", asked.partition),
        ("Account", asked.account),
        ("Ran on", _hosts(facts.hosts)),
        ("GPU", ", ".join(dict.fromkeys(gpu.name for gpu in facts.used.gpus if gpu.name))),
        ("Launcher", facts.launcher),
        ("Framework", facts.framework),
        ("Submitted", format_moment(facts.submitted)),
        ("Started", format_moment(facts.start)),
        ("Ended", format_moment(facts.end)),
    ]
    return [(name, value) for name, value in pairs if value]


def _hosts(names: Sequence[str]) -> str:
    return ", ".join(names[:_MOST_HOSTS]) + (" …" if len(names) > _MOST_HOSTS else "")


def attempt_table(facts: RunFacts) -> TextTable:
    """Return a table with one row per attempt."""
    rows = [
        [
            str(attempt.number), attempt.job_id or "here", format_moment(attempt.start), span(attempt.seconds),
            "" if attempt.first_step is None else f"{attempt.first_step:,} → {attempt.last_step or 0:,}",
            f"{attempt.lost_steps:,}" if attempt.lost_steps else "", attempt.outcome, attempt.reason,
        ]
        for attempt in facts.attempts
    ]  # fmt: skip
    titles = ("#", "Job", "Start", "Time", "Steps", "Lost", "Outcome", "Why")
    return TextTable(titles, rows, frozenset({3, 4, 5}))


def gpu_table(facts: RunFacts) -> TextTable:
    """Return a table with one row per GPU, the least busy first where there are many."""
    found = list(facts.used.gpus)
    shown = found
    if len(found) > _MOST_GPUS:
        shown = sorted(found, key=lambda gpu: gpu.use if gpu.use is not None else 2)[:_MOST_GPUS]
    rows = [
        [
            gpu.host, str(gpu.gpu), percent(gpu.use) if gpu.use is not None else "",
            size(gpu.memory) if gpu.memory else "", f"{gpu.power:.0f} W" if gpu.power else "",
            f"{gpu.temperature:.0f} °C" if gpu.temperature else "",
        ]
        for gpu in shown
    ]  # fmt: skip
    more = f"The {_MOST_GPUS} least busy of {len(found)} GPUs." if len(shown) < len(found) else ""
    titles = ("Host", "GPU", "Use", "Peak memory", "Power", "Temperature")
    return TextTable(titles, rows, frozenset({1, 2, 3, 4, 5}), more)


def format_moment(moment: datetime | None) -> str:
    """Format a time in the reader's time zone, which is named."""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S %Z") if moment else ""
