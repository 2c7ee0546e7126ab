"""Advice on the phases of a step, and on ranks that slow the others down."""

from __future__ import annotations

import math

from allranks.core.formatting import percent
from allranks.observe.report.advice.base import (
    Advice,
    integer_setting,
    join_names,
    option_to_type,
    short_time,
    time_setting,
    train_config,
)
from allranks.observe.report.advice.resource_advice import MFU_GOOD
from allranks.observe.report.model import RunFacts
from allranks.runtime.telemetry.peak_flops import peak_flops

DATA_WAIT = 0.15
COMMUNICATION = 0.3
MOST_ACCUMULATED = 8
"""Batches of one step: with more the global batch grows past what most models learn well from."""
CHECKPOINT = 0.1
CHECKPOINT_GOOD = 0.03
MFU_LOW = 0.25
MOST_EXCLUDED = 3
MOST_WORKERS = 16
"""Of one rank: more rarely load faster."""


def data(facts: RunFacts) -> Advice | None:
    """Advise on ranks that wait for data."""
    share = facts.share("data")
    if share is None or share < DATA_WAIT:
        return None
    text = f"Your ranks waited {percent(share)} of each step for data."
    cpus = _cpus_of_a_rank(facts)
    if cpus is None or cpus < 3:
        text += " Give the DataLoader more workers (num_workers), and as many CPUs."
        return Advice("data", "warning", text)
    workers = min(cpus - 1, MOST_WORKERS)
    text += (
        f" Each rank has {cpus} CPUs: give the DataLoader up to {workers} workers, if it has fewer."
    )
    how = f"DataLoader(…, num_workers={workers}, persistent_workers=True)"
    return Advice("data", "warning", text, how)


def communication(facts: RunFacts) -> Advice | None:
    """Advise on ranks that wait for the network rather than for a slow rank."""
    share = facts.share("communication")
    ranks, nodes = facts.requested.ranks or 1, facts.requested.nodes or 1
    if share is None or share < COMMUNICATION or ranks < 2 or facts.slow:
        return None
    text = f"Your ranks spent {percent(share)} of each step on communication."
    if nodes > 1:
        text += f" Do fewer nodes than {nodes} train about as fast? Measure it: allranks scale."
    text += (
        f" {'Otherwise do' if nodes > 1 else 'Do'} more between two exchanges: a larger batch per rank, or "
        "accumulated gradients. Both enlarge the global batch, so the learning rate may have to follow."
    )
    more = 2 * (integer_setting(facts, "accumulate") or 1)
    how = train_config(facts, accumulate=more) if more <= MOST_ACCUMULATED else ""
    return Advice("communication", "warning", text, how)


def checkpoints(facts: RunFacts) -> Advice | None:
    """Advise on the time spent on checkpoints."""
    share = facts.share("checkpoint")
    if share is None or share < CHECKPOINT:
        return None
    text = f"Saving checkpoints took {percent(share)} of the time."
    if facts.settings.get("checkpoint_async") == "False":
        text += " Write them while the training continues, or save less often."
        return Advice("checkpoints", "warning", text, train_config(facts, checkpoint_async=True))
    text += " Save less often, or to a faster disk."
    return Advice("checkpoints", "warning", text, train_config(facts, **_rare_saves(facts, share)))


def _rare_saves(facts: RunFacts, share: float) -> dict[str, int | str]:
    """Return settings that save rarely enough to cost little; empty where no interval is set."""
    factor = math.ceil(share / CHECKPOINT_GOOD)
    counts = {
        name: number * factor
        for name in ("checkpoint_every_steps", "checkpoint_every")
        if (number := integer_setting(facts, name))
    }
    seconds = time_setting(facts, "checkpoint_every_time")
    return counts | ({"checkpoint_every_time": short_time(seconds * factor)} if seconds else {})


def stragglers(facts: RunFacts) -> Advice | None:
    """Advise on ranks that the others wait for."""
    slow = facts.slow
    if not slow:
        return None
    shown = [f"rank {each.rank}" + (f" on {each.host}" if each.host else "") for each in slow]
    behind = max(each.behind for each in slow)
    text = (
        f"The others waited for {join_names(shown)}: {'its' if len(slow) == 1 else 'their'} own work took "
        f"{'up to ' if len(slow) > 1 else ''}{percent(behind)} longer than the others'."
    )
    hosts = list(dict.fromkeys(each.host for each in slow if each.node_is_slow))
    if 0 < len(hosts) <= MOST_EXCLUDED and facts.on_slurm:
        text += f" Other attempts show that it is {join_names(hosts)}, whatever rank is there: exclude it."
        return Advice(
            "stragglers", "warning", text, option_to_type(facts, "exclude", ",".join(hosts))
        )
    if (facts.requested.nodes or 1) > 1:
        text += (
            " If another rank is slow on the same node next time, exclude it; if the same rank is slow "
            "elsewhere, look at its data."
        )
    else:
        text += " Look at its share of the data, and at what else runs on its GPU and CPUs."
    return Advice("stragglers", "warning", text)


def mfu(facts: RunFacts) -> Advice | None:
    """Advise on a low MFU that nothing else explains."""
    reached = facts.typical.get("mfu")
    if reached is None or reached >= MFU_LOW:
        return None
    hints: dict[str, int | str] = {}
    if facts.settings.get("precision") in ("fp32", "tf32"):
        hints["precision"] = _half_precision(facts)
    if facts.settings.get("compile") == "False":
        hints["compile"] = True
    text = f"The training reached {percent(reached)} of what the GPUs can compute (MFU; {percent(MFU_GOOD)} is good)."
    if not hints:
        text += " A larger batch or larger matrices raise it."
        return Advice("mfu", "note", text)
    return Advice("mfu", "note", text, train_config(facts, **hints))


def _half_precision(facts: RunFacts) -> str:
    """Return bf16, which needs no loss scaling; fp16 where a GPU lacks bf16."""
    lacking = [
        gpu
        for gpu in facts.used.gpus
        if peak_flops(gpu.name, "fp16") and not peak_flops(gpu.name, "bf16")
    ]
    return "fp16" if lacking else "bf16"


def _cpus_of_a_rank(facts: RunFacts) -> int | None:
    """Return the CPUs of a rank; None when unknown."""
    per_node = facts.used.cpus_allowed or facts.requested.cpus_per_node
    ranks = facts.requested.ranks_per_node
    return per_node // ranks if per_node and ranks else None
