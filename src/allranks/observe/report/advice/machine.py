"""Advice on what the nodes gave: CPUs and memory."""

from __future__ import annotations

import math

from allranks.core.formatting import percent, size
from allranks.observe.report.advice.base import Advice, ask, memory_to_ask
from allranks.observe.report.model import RunFacts

CPU_HEADROOM = 1.25
"""Over the level that is rarely exceeded."""
CPU_HEADROOM_OF_A_MEAN = 2.0
"""Over a mean, which hides how much was needed at a time."""
CPUS_PER_GPU_RANK = 4
"""A rank with a GPU needs some beside its own thread: the backward pass, the network, loader workers."""
CPU_WASTE = 1.5
"""Asked over needed, from which less is advised …"""
CPU_LEAST_SAVED = 4
"""… and the CPUs on a node that this has to set free."""
CPUS_FULL = 0.9
CPU_MORE = 1.5
DATA_WAIT_HERE = 0.1
"""CPUs all busy, and ranks that wait for data by this share of a step: the CPUs are too few."""
MEMORY_HEADROOM = 1.2
MEMORY_WASTE = 2.0
MEMORY_LEAST_SAVED = 8 * 2**30
MEMORY_TIGHT = 0.92
"""Of what is allowed: from here on a little more data ends the job."""
MEMORY_MORE = 1.3
MEMORY_AFTER_OUT = 1.5
LONG_ENOUGH = 1800.0
"""Seconds of training after which also a run that did not complete has shown what it needs."""


def cpus(facts: RunFacts) -> Advice | None:
    """CPUs asked for and not used."""
    asked, used = facts.asked, facts.used
    if asked.exclusive or not asked.cpus_per_node or used.cpus is None or not may_cut(facts):
        return None
    sampled = used.source == "samples" and used.cpus_high is not None
    needed = (used.cpus_high or 0) * CPU_HEADROOM if sampled else used.cpus * CPU_HEADROOM_OF_A_MEAN
    tasks = asked.tasks_per_node or 1
    ranks = asked.ranks_per_node or max(tasks, asked.gpus_per_node or 0)
    least = CPUS_PER_GPU_RANK if asked.has_gpus else 1
    enough = max(math.ceil(needed / tasks), math.ceil(ranks * least / tasks))
    saved = asked.cpus_per_node - enough * tasks
    if asked.cpus_per_node < enough * tasks * CPU_WASTE or saved < CPU_LEAST_SAVED:
        return None
    busy = (used.cpus_high if sampled else used.cpus) or 0.0
    word = "asked for" if asked.cpus_per_task else "had"
    of = "task" if asked.tasks_per_node else "node"
    text = (
        f"You {word} {asked.cpus_per_node // tasks} CPUs per {of} and used {_number(busy / tasks)}"
        f"{'' if sampled else ' in the mean'}: {enough} {'is' if enough == 1 else 'are'} enough."
    )
    # Without the number of tasks nobody can tell what --cpus-per-task would be multiplied by.
    command = ask(facts, "cpus-per-task", enough) if asked.tasks_per_node else ""
    return Advice("cpus", "warning", text, command)


def cpus_short(facts: RunFacts) -> Advice | None:
    """All CPUs busy while the ranks wait for data."""
    asked, used = facts.asked, facts.used
    data = facts.share("data")
    if not asked.cpus_per_node or used.cpus_high is None or data is None:
        return None
    if used.cpus_high < CPUS_FULL * asked.cpus_per_node or data < DATA_WAIT_HERE:
        return None
    tasks = asked.tasks_per_node or 1
    wanted = math.ceil(asked.cpus_per_node / tasks * CPU_MORE)
    more = min(wanted, (used.cpus_total or wanted * tasks) // tasks)
    has_more = not asked.exclusive and more * tasks > asked.cpus_per_node
    text = (
        f"The ranks waited {percent(data)} of each step for data, and all "
        f"{asked.cpus_per_node} CPUs of {used.cpus_host or 'the node'} were busy: "
        f"{'ask for more CPUs, or ' if has_more else 'the node has no more, so '}"
        "let the loader do less for each sample (decode once, smaller images, faster formats)."
    )
    command = ask(facts, "cpus-per-task", more) if has_more else ""
    return Advice("cpus-short", "warning", text, command)


def memory(facts: RunFacts) -> Advice | None:
    """Memory that ran out, is near its limit, or far below it."""
    if facts.state == "out of memory":
        return memory_out(facts)
    limit = facts.asked.memory_per_node or facts.used.memory_limit
    if facts.used.memory is None or not limit:
        return None
    exact = not facts.used.memory_at_most
    if exact and facts.used.memory >= MEMORY_TIGHT * limit:
        return _memory_tight(facts, facts.used.memory, limit)
    return _memory_to_spare(facts, facts.used.memory) if may_cut(facts) else None


def memory_out(facts: RunFacts) -> Advice:
    """The job was killed for it."""
    limit = facts.asked.memory_per_node or facts.used.memory_limit
    what = f"more than its {size(limit)} per node" if limit else "more memory than it had"
    way, command = _more_memory(facts, limit * MEMORY_AFTER_OUT if limit else None)
    return Advice(
        "memory-out", "error", f"The job was ended because it needed {what}: {way}.", command
    )


def _memory_tight(facts: RunFacts, held: int, limit: int) -> Advice:
    way, command = _more_memory(facts, held * MEMORY_MORE)
    text = (
        f"Your processes held {size(held)} of {size(limit)}{_where(facts)}, {percent(held / limit)}: "
        f"a little more and they are killed. To be safe {way}."
    )
    return Advice("memory-tight", "warning", text, command)


def _memory_to_spare(facts: RunFacts, held: int) -> Advice | None:
    asked = facts.asked
    enough, asked_for = memory_to_ask(held * MEMORY_HEADROOM), asked.memory_per_node
    if asked.exclusive or asked.memory_is_all or not asked_for:
        return None
    if asked_for < enough * MEMORY_WASTE or asked_for - enough < MEMORY_LEAST_SAVED:
        return None
    text = (
        f"You asked for {size(asked_for)} of memory per node and used {size(held)} at most"
        f"{_where(facts)}: {size(enough)} leave a fifth to spare."
    )
    return Advice("memory", "note", text, ask(facts, "memory", enough))


def _more_memory(facts: RunFacts, wanted: float | None) -> tuple[str, str]:
    """What helps, in words and to type: a node gives no more than it has."""
    asked, total = facts.asked, facts.used.memory_total
    fewer = "use fewer loader workers, or start fewer ranks on each node"
    if facts.scheduler != "slurm":
        return fewer, ""
    more = memory_to_ask(wanted) if wanted else None
    if asked.memory_is_all or asked.exclusive or (more and total and more > total):
        return f"the node has little more, so {fewer}, or take a partition with larger nodes", ""
    return "ask for more", ask(facts, "memory", more) if more else ""


def may_cut(facts: RunFacts) -> bool:
    """Whether less can be advised: the end of a run often needs more than its beginning."""
    if facts.state == "completed":
        return True
    return facts.used.source == "samples" and facts.used.seconds >= LONG_ENOUGH


def _where(facts: RunFacts) -> str:
    return f" on {facts.used.memory_host}" if facts.used.memory_host else ""


def _number(value: float) -> str:
    if 0 <= value < 0.1:
        return "almost none"
    return f"{value:.0f}" if value >= 10 or value == round(value) else f"{value:.1f}"
