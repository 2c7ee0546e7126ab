"""Advice on what the machine gave: CPUs, memory, GPUs and their health."""

from __future__ import annotations

import math
from statistics import median

from allranks.report.advice.base import (
    Advice,
    amount,
    ask,
    memory_to_ask,
    names,
    percent,
    size,
)
from allranks.report.model import Facts, GpuUsed

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
DATA_WAIT_HERE = 0.1
"""CPUs all busy, and ranks that wait for data by this share of a step: the CPUs are too few."""
MEMORY_HEADROOM = 1.2
MEMORY_WASTE = 2.0
MEMORY_LEAST_SAVED = 8 * 2**30
MEMORY_TIGHT = 0.92
"""Of what is allowed: from here on a little more data ends the job."""
MEMORY_MORE = 1.3
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


def cpus(facts: Facts) -> Advice | None:
    """CPUs asked for and not used."""
    asked, used = facts.asked, facts.used
    if asked.exclusive or not asked.cpus_per_node or used.cpus is None:
        return None
    sampled = used.source == "samples" and used.cpus_high is not None
    needed = (used.cpus_high or 0) * CPU_HEADROOM if sampled else used.cpus * CPU_HEADROOM_OF_A_MEAN
    tasks = asked.tasks_per_node or 1
    ranks = asked.ranks_per_node or max(tasks, asked.gpus_per_node or 0)
    least = CPUS_PER_GPU_RANK if asked.gpus_per_node else 1
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


def cpus_short(facts: Facts) -> Advice | None:
    """All CPUs busy while the ranks wait for data."""
    asked, used = facts.asked, facts.used
    data = facts.share("data")
    if not asked.cpus_per_node or used.cpus_high is None or data is None:
        return None
    if used.cpus_high < CPUS_FULL * asked.cpus_per_node or data < DATA_WAIT_HERE:
        return None
    text = (
        f"The ranks waited {percent(data)} of each step for data, and all "
        f"{asked.cpus_per_node} CPUs of {used.cpus_host or 'the node'} were busy: ask for more CPUs, "
        "or let the loader do less for each sample (decode once, smaller images, faster formats)."
    )
    more = math.ceil(asked.cpus_per_node / (asked.tasks_per_node or 1) * 1.5)
    return Advice("cpus-short", "warning", text, ask(facts, "cpus-per-task", more))


def memory(facts: Facts) -> Advice | None:
    """Memory near its limit, or far below it."""
    asked, used = facts.asked, facts.used
    limit = asked.memory_per_node or used.memory_limit
    if facts.state == "out of memory" and limit:
        more = memory_to_ask(limit * 1.5)
        text = f"The job was ended because it needed more than its {size(limit)} per node: ask for more."
        return Advice("memory-out", "error", text, ask(facts, "memory", more))
    if used.memory is None or not limit:
        return None
    where = f" on {used.memory_host}" if used.memory_host else ""
    exact = not used.memory_at_most
    if exact and used.memory >= MEMORY_TIGHT * limit and not asked.memory_is_all:
        more = memory_to_ask(used.memory * MEMORY_MORE)
        text = (
            f"Your processes held {size(used.memory)} of {size(limit)}{where}, "
            f"{percent(used.memory / limit)}: a little more and the job is killed. Ask for more."
        )
        return Advice("memory-tight", "warning", text, ask(facts, "memory", more))
    enough = memory_to_ask(used.memory * MEMORY_HEADROOM)
    asked_for = asked.memory_per_node
    if asked.exclusive or asked.memory_is_all or not asked_for:
        return None
    if asked_for < enough * MEMORY_WASTE or asked_for - enough < MEMORY_LEAST_SAVED:
        return None
    text = (
        f"You asked for {size(asked_for)} of memory per node and used {size(used.memory)} at most"
        f"{where}: {size(enough)} leave a fifth to spare."
    )
    return Advice("memory", "note", text, ask(facts, "memory", enough))


def idle_gpus(facts: Facts) -> Advice | None:
    """GPUs that did nothing at all."""
    judged = _own_gpus(facts)
    idle = [gpu for gpu in judged if _did_nothing(gpu)]
    if not idle:
        return None
    if facts.used.source == "accounting":
        text = (
            f"Slurm's accounting saw no work on your {amount(len(judged), 'GPU')}. "
            "Did the training run on them?"
        )
        return Advice("gpus-idle", "warning", text, _HAS_CUDA)
    if len(idle) == len(judged):
        text = (
            f"None of your {amount(len(judged), 'GPU')} did anything. Is the model moved to the GPU, "
            "and is torch a build for it? See: allranks frameworks"
        )
        return Advice("gpus-idle", "error", text, _HAS_CUDA)
    where = names([f"GPU {gpu.gpu} of {gpu.host}" for gpu in idle])
    per_node, ranks = facts.asked.gpus_per_node, facts.asked.ranks_per_node
    text = f"{where} did nothing during the whole run."
    if per_node and ranks and ranks < per_node:
        text += (
            f" You started {amount(ranks, 'rank')} on each node for {per_node} GPUs: "
            "leave --nprocs out (one rank per GPU), or ask for fewer GPUs."
        )
        return Advice("gpus-idle", "error", text, ask(facts, "gpus-per-node", ranks))
    text += " Ask for fewer, or start a rank for each (a launcher of your own may start too few)."
    return Advice("gpus-idle", "error", text)


def gpu_use(facts: Facts) -> Advice | None:
    """GPUs that waited, where nothing else tells why."""
    use = facts.used.gpu_use
    judged = _own_gpus(facts)
    if use is None or not judged or use >= GPU_LOW or any(_did_nothing(gpu) for gpu in judged):
        return None
    text = (
        f"Your {amount(len(judged), 'GPU')} computed {percent(use)} of the time. "
        "A larger batch keeps them busier; look at what a step is made of before you ask for more GPUs."
    )
    return Advice("gpus-low", "warning", text)


def gpu_memory(facts: Facts) -> Advice | None:
    """GPU memory that a larger batch could use."""
    share = facts.used.gpu_memory
    mfu = facts.typical.get("mfu")
    if share is None or share >= GPU_MEMORY_FREE or (mfu is not None and mfu >= MFU_GOOD):
        return None
    if any(_did_nothing(gpu) for gpu in facts.used.gpus) or not _own_gpus(facts):
        return None
    text = (
        f"At its peak your fullest GPU held {percent(share)} of its memory: a larger batch fits, "
        "and is often faster for each sample. Scale the learning rate with it (lr_scaling)."
    )
    return Advice("gpu-memory", "note", text)


def hot_gpus(facts: Facts) -> Advice | None:
    """GPUs so hot that they slow down."""
    hot = [gpu for gpu in facts.used.gpus if (gpu.temperature or 0) >= HOT]
    if not hot:
        return None
    worst = max(hot, key=lambda gpu: gpu.temperature or 0)
    where = names([f"GPU {gpu.gpu} of {gpu.host}" for gpu in hot])
    text = (
        f"{where} ran at {worst.temperature:.0f} °C{' and less' if len(hot) > 1 else ''}; from about "
        f"{HOT:.0f} °C GPUs slow themselves down. Tell your administrators, and keep away meanwhile."
    )
    hosts = sorted({gpu.host for gpu in hot})
    return Advice("gpu-hot", "warning", text, _keep_away(facts, hosts))


def capped_gpus(facts: Facts) -> Advice | None:
    """GPUs with a lower power limit than their like."""
    limits = [gpu.power_limit for gpu in facts.used.gpus if gpu.power_limit]
    if len(limits) < 2:
        return None
    usual = median(limits)
    low = [gpu for gpu in facts.used.gpus if gpu.power_limit and gpu.power_limit < CAPPED * usual]
    if not low or len({gpu.name for gpu in facts.used.gpus}) > 1:
        return None
    where = names([f"GPU {gpu.gpu} of {gpu.host}" for gpu in low])
    text = (
        f"{where} may take {min(gpu.power_limit or 0 for gpu in low):.0f} W, the others {usual:.0f} W: "
        "all ranks wait for the slowest. Tell your administrators, and keep away meanwhile."
    )
    hosts = sorted({gpu.host for gpu in low})
    return Advice("gpu-capped", "warning", text, _keep_away(facts, hosts))


def _own_gpus(facts: Facts) -> list[GpuUsed]:
    """The job's GPUs; none where a node showed more than it had asked for: those are of others too."""
    asked = facts.asked.gpus_per_node
    counts: dict[str, int] = {}
    for gpu in facts.used.gpus:
        counts[gpu.host] = counts.get(gpu.host, 0) + 1
    if facts.used.source == "samples" and asked and any(count > asked for count in counts.values()):
        return []
    return [gpu for gpu in facts.used.gpus if gpu.use is not None]


def _did_nothing(gpu: GpuUsed) -> bool:
    quiet = gpu.use is not None and gpu.use < GPU_NEVER
    return quiet and (gpu.memory is None or gpu.memory < GPU_NEVER_MEMORY)


def _keep_away(facts: Facts, hosts: list[str]) -> str:
    """Of a few nodes; a whole cluster cannot be excluded."""
    on_slurm = facts.scheduler == "slurm" and 0 < len(hosts) < 4
    return ask(facts, "exclude", ",".join(hosts)) if on_slurm else ""


def _number(value: float) -> str:
    if 0 <= value < 0.1:
        return "almost none"
    return f"{value:.0f}" if value >= 10 or value == round(value) else f"{value:.1f}"
