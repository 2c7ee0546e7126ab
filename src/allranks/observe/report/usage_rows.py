"""What was used of what was asked for, the same for every form of a report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from allranks.core.formatting import percent, size, span, three
from allranks.observe.report.advice.base import counted
from allranks.observe.report.model import RunFacts


@dataclass(frozen=True)
class Use:
    """What was used of what was asked for."""

    title: str
    used: str
    asked: str
    share: float | None = None
    """Used over asked."""
    about: str = ""


def word(facts: RunFacts) -> str:
    """On this machine nothing is asked for: a run has what is there."""
    return "Asked for" if facts.scheduler == "slurm" else "Had"


def uses(facts: RunFacts) -> list[Use]:
    """Asked against used, per node; what is not known is left out."""
    found = [_cpu_use(facts), _memory_use(facts), *_gpu_uses(facts), _time_use(facts)]
    return [each for each in found if each is not None]


def _cpu_use(facts: RunFacts) -> Use | None:
    used = facts.used
    if used.cpus is None:
        return None
    has = facts.asked.cpus_per_node or used.cpus_allowed
    busy = used.cpus if used.cpus_high is None else used.cpus_high
    mean = "in the mean" if used.cpus_high is None else f"mean {three(round(used.cpus, 2))}"
    where = f"on {used.cpus_host}" if used.cpus_host and (facts.asked.nodes or 1) > 1 else ""
    share = _over(busy, has)
    return Use(
        "CPUs of a node", three(round(busy, 2)), str(has or "?"), share, _about(share, where, mean)
    )


def _memory_use(facts: RunFacts) -> Use | None:
    used = facts.used
    if used.memory is None:
        return None
    limit = facts.asked.memory_per_node or used.memory_limit
    where = f"on {used.memory_host}" if used.memory_host else ""
    share = _over(used.memory, limit)
    about = _about(share, where, "at most" if used.memory_at_most else "at its peak")
    return Use("Memory of a node", size(used.memory), size(limit) if limit else "?", share, about)


def _gpu_uses(facts: RunFacts) -> Iterator[Use]:
    used = facts.used
    if used.gpu_use is not None:
        count = counted(len(used.gpus), "GPU")
        yield Use("GPU time", percent(used.gpu_use), count, used.gpu_use, "with a kernel running")
    if used.gpu_memory is not None:
        total = max((gpu.memory_total or 0 for gpu in used.gpus), default=0)
        about = _about(used.gpu_memory, "", "the fullest, at its peak")
        held = size(used.gpu_memory * total)
        yield Use("GPU memory", held, size(total), used.gpu_memory, about)


def _time_use(facts: RunFacts) -> Use | None:
    limit = facts.asked.time_limit
    if not limit or not facts.seconds:
        return None
    longest = max((life.seconds for life in facts.attempts), default=facts.seconds)
    which = "the longest attempt" if len(facts.attempts) > 1 else ""
    share = _over(longest, limit)
    return Use("Time", span(longest), span(limit), share, _about(share, "", which))


def _about(share: float | None, *words: str) -> str:
    shown = percent(share) if share is not None else ""
    return ", ".join(each for each in (shown, *words) if each)


def _over(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None
