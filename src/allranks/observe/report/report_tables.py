"""The facts as rows of text, the same for every form of a report."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from allranks.core.formatting import percent, size, span
from allranks.observe.pages.text_table import TextTable
from allranks.observe.report.model import RunFacts

_MOST_GPUS = 64
_MOST_HOSTS = 16


def request(facts: RunFacts) -> list[tuple[str, str]]:
    """What was asked for and where it ran, in words."""
    asked = facts.asked
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
        ("Submitted", when(facts.submitted)),
        ("Started", when(facts.start)),
        ("Ended", when(facts.end)),
    ]
    return [(name, value) for name, value in pairs if value]


def _hosts(names: Sequence[str]) -> str:
    return ", ".join(names[:_MOST_HOSTS]) + (" …" if len(names) > _MOST_HOSTS else "")


def attempts(facts: RunFacts) -> TextTable:
    """One row for each."""
    rows = [
        [
            str(life.number), life.job_id or "here", when(life.start), span(life.seconds),
            "" if life.first_step is None else f"{life.first_step:,} → {life.last_step or 0:,}",
            f"{life.lost_steps:,}" if life.lost_steps else "", life.outcome, life.reason,
        ]
        for life in facts.attempts
    ]  # fmt: skip
    titles = ("#", "Job", "Start", "Time", "Steps", "Lost", "Outcome", "Why")
    return TextTable(titles, rows, frozenset({3, 4, 5}))


def gpus(facts: RunFacts) -> TextTable:
    """One row for each, the least busy first where there are many."""
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


def when(moment: datetime | None) -> str:
    """In the reader's time zone, which is named."""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S %Z") if moment else ""
