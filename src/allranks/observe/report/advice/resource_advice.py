"""Advice on GPUs, CPUs and memory: what was idle, short or unhealthy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from allranks.core.formatting import percent, size
from allranks.observe.report.advice.base import (
    Advice,
    format_count,
    join_names,
    option_to_type,
    round_memory,
)
from allranks.observe.report.model import GpuUsed, RunFacts

GPU_NEVER = 0.02
GPU_NEVER_MEMORY = 2 * 2**30
"""A GPU with less use and less memory than these did nothing."""
GPU_LOW = 0.5
GPU_MEMORY_FREE = 0.5
MFU_GOOD = 0.4
HOT = 85.0
"""°C: from about here NVIDIA's GPUs slow down."""
_HAS_CUDA = 'python -c "import torch; print(torch.cuda.is_available())"'
CAPPED = 0.9
"""A power limit below this share of the other GPUs'."""


def idle_gpus(facts: RunFacts) -> Advice | None:
    """Advise on GPUs that did nothing at all."""
    judged = _judged_gpus(facts)
    idle = [gpu for gpu in judged if _was_idle(gpu)]
    if not idle:
        return None
    if facts.used.source == "accounting":
        text = (
            f"Slurm's accounting saw no work on your {format_count(len(judged), 'GPU')}. "
            "Did the training run on them?"
        )
        return Advice("gpus-idle", "warning", text, _HAS_CUDA)
    if len(idle) == len(judged):
        text = (
            f"None of your {format_count(len(judged), 'GPU')} did anything. Is the model moved to the GPU, "
            "and is torch a build for it? See: allranks frameworks"
        )
        return Advice("gpus-idle", "error", text, _HAS_CUDA)
    where = join_names([f"GPU {gpu.gpu} of {gpu.host}" for gpu in idle])
    per_node, ranks = facts.requested.gpus_per_node, facts.requested.ranks_per_node
    text = f"{where} did nothing during the whole run."
    if per_node and ranks and ranks < per_node:
        text += (
            f" You started {format_count(ranks, 'rank')} on each node for {per_node} GPUs: "
            "leave --nprocs out (one rank per GPU), or ask for fewer GPUs."
        )
    else:
        text += (
            " Ask for fewer, or start a rank for each (a launcher of your own may start too few)."
        )
    worked = _most_at_work(facts.used.gpus)
    fewer = per_node and worked < per_node
    command = option_to_type(facts, "gpus-per-node", worked) if fewer else ""
    return Advice("gpus-idle", "error", text, command)


def _most_at_work(gpus: Sequence[GpuUsed]) -> int:
    """Return the number of busy GPUs on the node that has most of them."""
    hosts = [gpu.host for gpu in gpus if not _was_idle(gpu)]
    return max(map(hosts.count, hosts))


def gpu_use(facts: RunFacts) -> Advice | None:
    """Advise on low GPU use that nothing else explains."""
    use = facts.used.gpu_use
    judged = _judged_gpus(facts)
    if use is None or not judged or use >= GPU_LOW or any(_was_idle(gpu) for gpu in judged):
        return None
    text = (
        f"Your {format_count(len(judged), 'GPU')} computed {percent(use)} of the time. "
        "A larger batch keeps them busier; look at what a step is made of before you ask for more GPUs."
    )
    return Advice("gpus-low", "warning", text)


def gpu_memory(facts: RunFacts) -> Advice | None:
    """Advise on GPU memory that a larger batch could use."""
    share = facts.used.gpu_memory
    mfu = facts.typical.get("mfu")
    if share is None or share >= GPU_MEMORY_FREE or (mfu is not None and mfu >= MFU_GOOD):
        return None
    if any(_was_idle(gpu) for gpu in facts.used.gpus) or not _judged_gpus(facts):
        return None
    text = (
        f"At its peak your fullest GPU held {percent(share)} of its memory: a larger batch fits, "
        "and is often faster for each sample. Scale the learning rate with it (lr_scaling)."
    )
    return Advice("gpu-memory", "note", text)


def hot_gpus(facts: RunFacts) -> Advice | None:
    """Advise on GPUs so hot that they slow down."""
    hot = [gpu for gpu in facts.used.gpus if (gpu.temperature or 0) >= HOT]
    if not hot:
        return None
    worst = max(hot, key=lambda gpu: gpu.temperature or 0)
    where = join_names([f"GPU {gpu.gpu} of {gpu.host}" for gpu in hot])
    text = (
        f"{where} ran at {worst.temperature:.0f} °C{' and less' if len(hot) > 1 else ''}; from about "
        f"{HOT:.0f} °C GPUs slow themselves down. Report it to your administrators, and exclude the node until then."
    )
    hosts = sorted({gpu.host for gpu in hot})
    return Advice("gpu-hot", "warning", text, _exclude_hosts(facts, hosts))


def capped_gpus(facts: RunFacts) -> Advice | None:
    """Advise on GPUs with a lower power limit than the others."""
    limits = [gpu.power_limit for gpu in facts.used.gpus if gpu.power_limit]
    if len(limits) < 2:
        return None
    usual = median(limits)
    low = [gpu for gpu in facts.used.gpus if gpu.power_limit and gpu.power_limit < CAPPED * usual]
    if not low or len({gpu.name for gpu in facts.used.gpus}) > 1:
        return None
    where = join_names([f"GPU {gpu.gpu} of {gpu.host}" for gpu in low])
    text = (
        f"{where} may take {min(gpu.power_limit or 0 for gpu in low):.0f} W, the others {usual:.0f} W: "
        "all ranks wait for the slowest. Report it to your administrators, and exclude the node until then."
    )
    hosts = sorted({gpu.host for gpu in low})
    return Advice("gpu-capped", "warning", text, _exclude_hosts(facts, hosts))


def _judged_gpus(facts: RunFacts) -> list[GpuUsed]:
    return [gpu for gpu in facts.used.gpus if gpu.use is not None]


def _was_idle(gpu: GpuUsed) -> bool:
    quiet = gpu.use is not None and gpu.use < GPU_NEVER
    return quiet and (gpu.memory is None or gpu.memory < GPU_NEVER_MEMORY)


def _exclude_hosts(facts: RunFacts, hosts: list[str]) -> str:
    """Return the option that excludes a few nodes; empty for many."""
    on_slurm = facts.on_slurm and 0 < len(hosts) < 4
    return option_to_type(facts, "exclude", ",".join(hosts)) if on_slurm else ""


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
    """Advise on CPUs that were requested and not used."""
    asked, used = facts.requested, facts.used
    if asked.exclusive or not asked.cpus_per_node or used.cpus is None or not may_reduce(facts):
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
    # Without the number of tasks it is unknown what --cpus-per-task would be multiplied by.
    command = option_to_type(facts, "cpus-per-task", enough) if asked.tasks_per_node else ""
    return Advice("cpus", "warning", text, command)


def cpus_short(facts: RunFacts) -> Advice | None:
    """Advise on CPUs that are all busy while the ranks wait for data."""
    asked, used = facts.requested, facts.used
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
    command = option_to_type(facts, "cpus-per-task", more) if has_more else ""
    return Advice("cpus-short", "warning", text, command)


def memory(facts: RunFacts) -> Advice | None:
    """Advise on memory that ran out, is near its limit, or far below it."""
    if facts.state == "out of memory":
        return memory_out(facts)
    limit = facts.requested.memory_per_node or facts.used.memory_limit
    if facts.used.memory is None or not limit:
        return None
    exact = not facts.used.memory_at_most
    if exact and facts.used.memory >= MEMORY_TIGHT * limit:
        return _memory_tight(facts, facts.used.memory, limit)
    return _memory_to_spare(facts, facts.used.memory) if may_reduce(facts) else None


def memory_out(facts: RunFacts) -> Advice:
    """Advise on a job that was killed for its memory."""
    limit = facts.requested.memory_per_node or facts.used.memory_limit
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
    asked = facts.requested
    enough, asked_for = round_memory(held * MEMORY_HEADROOM), asked.memory_per_node
    if asked.exclusive or asked.memory_is_all or not asked_for:
        return None
    if asked_for < enough * MEMORY_WASTE or asked_for - enough < MEMORY_LEAST_SAVED:
        return None
    text = (
        f"You asked for {size(asked_for)} of memory per node and used {size(held)} at most"
        f"{_where(facts)}: {size(enough)} leave a fifth to spare."
    )
    return Advice("memory", "note", text, option_to_type(facts, "memory", enough))


def _more_memory(facts: RunFacts, wanted: float | None) -> tuple[str, str]:
    """Return what helps, in words and as an option; a node cannot give more than it has."""
    asked, total = facts.requested, facts.used.memory_total
    fewer = "use fewer loader workers, or start fewer ranks on each node"
    if not facts.on_slurm:
        return fewer, ""
    more = round_memory(wanted) if wanted else None
    if asked.memory_is_all or asked.exclusive or (more and total and more > total):
        return f"the node has little more, so {fewer}, or take a partition with larger nodes", ""
    return "ask for more", option_to_type(facts, "memory", more) if more else ""


def may_reduce(facts: RunFacts) -> bool:
    """Return whether less can be advised: the end of a run often needs more than its beginning."""
    if facts.state == "completed":
        return True
    return facts.used.source == "samples" and facts.used.seconds >= LONG_ENOUGH


def _where(facts: RunFacts) -> str:
    return f" on {facts.used.memory_host}" if facts.used.memory_host else ""


def _number(value: float) -> str:
    if 0 <= value < 0.1:
        return "almost none"
    return f"{value:.0f}" if value >= 10 or value == round(value) else f"{value:.1f}"
