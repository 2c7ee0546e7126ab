"""Advice on the GPUs: whether they worked, and their health."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from allranks.core.formatting import percent
from allranks.observe.report.advice.base import Advice, ask, counted, names
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
    """GPUs that did nothing at all."""
    judged = _judged_gpus(facts)
    idle = [gpu for gpu in judged if _did_nothing(gpu)]
    if not idle:
        return None
    if facts.used.source == "accounting":
        text = (
            f"Slurm's accounting saw no work on your {counted(len(judged), 'GPU')}. "
            "Did the training run on them?"
        )
        return Advice("gpus-idle", "warning", text, _HAS_CUDA)
    if len(idle) == len(judged):
        text = (
            f"None of your {counted(len(judged), 'GPU')} did anything. Is the model moved to the GPU, "
            "and is torch a build for it? See: allranks frameworks"
        )
        return Advice("gpus-idle", "error", text, _HAS_CUDA)
    where = names([f"GPU {gpu.gpu} of {gpu.host}" for gpu in idle])
    per_node, ranks = facts.asked.gpus_per_node, facts.asked.ranks_per_node
    text = f"{where} did nothing during the whole run."
    if per_node and ranks and ranks < per_node:
        text += (
            f" You started {counted(ranks, 'rank')} on each node for {per_node} GPUs: "
            "leave --nprocs out (one rank per GPU), or ask for fewer GPUs."
        )
    else:
        text += (
            " Ask for fewer, or start a rank for each (a launcher of your own may start too few)."
        )
    worked = _most_at_work(facts.used.gpus)
    fewer = per_node and worked < per_node
    command = ask(facts, "gpus-per-node", worked) if fewer else ""
    return Advice("gpus-idle", "error", text, command)


def _most_at_work(gpus: Sequence[GpuUsed]) -> int:
    """On the node with most of them."""
    hosts = [gpu.host for gpu in gpus if not _did_nothing(gpu)]
    return max(map(hosts.count, hosts))


def gpu_use(facts: RunFacts) -> Advice | None:
    """GPUs that waited, where nothing else tells why."""
    use = facts.used.gpu_use
    judged = _judged_gpus(facts)
    if use is None or not judged or use >= GPU_LOW or any(_did_nothing(gpu) for gpu in judged):
        return None
    text = (
        f"Your {counted(len(judged), 'GPU')} computed {percent(use)} of the time. "
        "A larger batch keeps them busier; look at what a step is made of before you ask for more GPUs."
    )
    return Advice("gpus-low", "warning", text)


def gpu_memory(facts: RunFacts) -> Advice | None:
    """GPU memory that a larger batch could use."""
    share = facts.used.gpu_memory
    mfu = facts.typical.get("mfu")
    if share is None or share >= GPU_MEMORY_FREE or (mfu is not None and mfu >= MFU_GOOD):
        return None
    if any(_did_nothing(gpu) for gpu in facts.used.gpus) or not _judged_gpus(facts):
        return None
    text = (
        f"At its peak your fullest GPU held {percent(share)} of its memory: a larger batch fits, "
        "and is often faster for each sample. Scale the learning rate with it (lr_scaling)."
    )
    return Advice("gpu-memory", "note", text)


def hot_gpus(facts: RunFacts) -> Advice | None:
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


def capped_gpus(facts: RunFacts) -> Advice | None:
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


def _judged_gpus(facts: RunFacts) -> list[GpuUsed]:
    return [gpu for gpu in facts.used.gpus if gpu.use is not None]


def _did_nothing(gpu: GpuUsed) -> bool:
    quiet = gpu.use is not None and gpu.use < GPU_NEVER
    return quiet and (gpu.memory is None or gpu.memory < GPU_NEVER_MEMORY)


def _keep_away(facts: RunFacts, hosts: list[str]) -> str:
    """Of a few nodes; a whole cluster cannot be excluded."""
    on_slurm = facts.scheduler == "slurm" and 0 < len(hosts) < 4
    return ask(facts, "exclude", ",".join(hosts)) if on_slurm else ""
