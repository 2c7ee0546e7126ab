"""Advice on what a step's time goes to, and on ranks that hold the others up."""

from __future__ import annotations

from allranks.report.advice.base import Advice, ask, names, percent
from allranks.report.advice.machine import MFU_GOOD
from allranks.report.model import Facts

DATA_WAIT = 0.15
COMMUNICATION = 0.3
CHECKPOINT = 0.1
MFU_LOW = 0.25
SLOW = 0.2
"""A rank is slow when its own work takes this much longer than the median rank's."""


def data(facts: Facts) -> Advice | None:
    """Ranks that wait for data."""
    share = facts.share("data")
    if share is None or share < DATA_WAIT:
        return None
    text = f"Your ranks waited {percent(share)} of each step for data."
    workers = _workers(facts)
    if workers:
        text += f" Give the DataLoader more workers: each rank has {workers + 1} CPUs."
        return Advice(
            "data",
            "warning",
            text,
            f"DataLoader(…, num_workers={workers}, persistent_workers=True)",
        )
    text += " Give the DataLoader more workers (num_workers), and as many CPUs."
    return Advice("data", "warning", text)


def communication(facts: Facts) -> Advice | None:
    """Ranks that wait for the network rather than for a slow rank."""
    share = facts.share("communication")
    ranks, nodes = facts.asked.ranks or 1, facts.asked.nodes or 1
    if share is None or share < COMMUNICATION or ranks < 2 or facts.slow:
        return None
    accumulate = facts.settings.get("accumulate", "1")
    text = f"Your ranks spent {percent(share)} of each step on communication."
    if nodes > 1:
        text += f" Do fewer nodes than {nodes} train about as fast? Measure it: allranks scale."
    text += " Otherwise do more between two exchanges: a larger batch per rank, or accumulated gradients."
    more = int(accumulate) * 2 if accumulate.isdigit() else 2
    return Advice("communication", "warning", text, f"TrainConfig(accumulate={more})")


def checkpoints(facts: Facts) -> Advice | None:
    """Time that goes into saving."""
    share = facts.share("checkpoint")
    if share is None or share < CHECKPOINT:
        return None
    text = f"Saving checkpoints took {percent(share)} of the time."
    if facts.settings.get("checkpoint_async") == "False":
        text += " Let them be written while the training goes on, or save less often."
        return Advice("checkpoints", "warning", text, "TrainConfig(checkpoint_async=True)")
    text += " Save less often, or to a faster disk."
    return Advice("checkpoints", "warning", text, "TrainConfig(checkpoint_every_time='30m')")


def stragglers(facts: Facts) -> Advice | None:
    """Ranks that the others wait for."""
    slow = [each for each in facts.slow if each.behind >= SLOW]
    if not slow:
        return None
    hosts = list(dict.fromkeys(each.host for each in slow if each.host))
    shown = [f"rank {each.rank}" + (f" on {each.host}" if each.host else "") for each in slow]
    behind = max(each.behind for each in slow)
    text = (
        f"The others waited for {names(shown)}: {'its' if len(slow) == 1 else 'their'} own work took "
        f"{'up to ' if len(slow) > 1 else ''}{percent(behind)} longer than the median rank's."
    )
    again = list(dict.fromkeys(each.host for each in slow if each.attempts > 1 and each.host))
    if again and len(hosts) <= 3 and facts.scheduler == "slurm":
        were = "was" if len(again) == 1 else "were"
        text += f" {names(again)} {were} slow in several attempts: keep away."
        return Advice("stragglers", "warning", text, ask(facts, "exclude", ",".join(again)))
    text += " If the next run finds the same node slow, exclude it; if the same rank elsewhere, look at its data."
    return Advice("stragglers", "warning", text)


def mfu(facts: Facts) -> Advice | None:
    """Little of what the GPUs can compute, where nothing else tells why."""
    reached = facts.typical.get("mfu")
    if reached is None or reached >= MFU_LOW:
        return None
    settings = facts.settings
    hints = []
    if settings.get("precision") in ("fp32", "tf32"):
        hints.append("precision='bf16'")
    if settings.get("compile") == "False":
        hints.append("compile=True")
    text = f"The training reached {percent(reached)} of what the GPUs can compute (MFU; {percent(MFU_GOOD)} is good)."
    if not hints:
        text += " A larger batch or larger matrices raise it."
        return Advice("mfu", "note", text)
    return Advice("mfu", "note", text, f"TrainConfig({', '.join(hints)})")


def _workers(facts: Facts) -> int | None:
    """As many loader workers as the rank has CPUs beside its own; None when that is not known."""
    per_node, ranks = (
        facts.used.cpus_allowed or facts.asked.cpus_per_node,
        facts.asked.ranks_per_node,
    )
    if not per_node or not ranks or per_node // ranks < 3:
        return None
    return min(per_node // ranks - 1, 16)
