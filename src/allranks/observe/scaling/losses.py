"""Where efficiency is lost: the time of a step beyond the ideal one, by what it went to."""

from __future__ import annotations

from collections.abc import Mapping

from allranks.core.formatting import percent
from allranks.observe.scaling.achieved import Achieved

GROUPS = {
    "communication": ("communication",),
    "stragglers": (),
    "data": ("data",),
    "compute": ("forward", "backward"),
    "optimizer": ("optimizer",),
    "checkpoint": ("checkpoint",),
    "other": ("other",),
    "step": (),
}
"""What is told apart, and the phases of a step that it is made of. Waiting for slow ranks is taken out
of communication, where it is measured; "step" is a step of the script's own, whose parts nobody knows."""

_WORTH_NAMING = 0.05

_MEANS = {
    "communication": "communication",
    "stragglers": "waiting for slower ranks",
    "data": "waiting for data",
    "compute": "forward and backward that became slower",
    "optimizer": "the optimizer",
    "checkpoint": "checkpoints",
    "other": "what is no part of the training step",
    "step": "the script's own step, its communication included",
}
_BATCH = (
    "batch, accumulate gradients over several (TrainConfig(accumulate=…)), or send fewer bytes "
    "(precision='bf16')."
)
_STRONG = {
    "communication": f"each rank has too little work between two exchanges. Use a larger global {_BATCH}",
    "compute": "small batches do not fill the device, or the ranks disturb each other. Use a larger "
    "global batch.",
    "optimizer": "its work does not shrink with the batch. Shard it: strategy='fsdp'.",
}
_WEAK = {
    "communication": f"exchanging gradients outlasts the backward pass. Give each rank a larger {_BATCH}",
    "compute": "the ranks disturb each other over cores, memory or power. Try fewer ranks on a machine.",
    "optimizer": "it should not grow with the ranks. `allranks top` shows whether cores are short.",
}
_ADVICE = {
    "stragglers": "`allranks top` names the slow rank. Look at its CPUs (--bind) and at samples of uneven "
    "size.",
    "data": "the loaders do not keep up. Give the DataLoader more num_workers.",
    "checkpoint": "save less often, or with checkpoint_async=True.",
    "step": "its parts are not told apart. Use a larger batch, or let the Trainer do the step.",
    "other": "callbacks, logging, or Python between the steps. Look at what the script does there.",
}
_ON_NODES = {
    "communication": "See that the ranks meet over the fast network (--interface).",
    "compute": "Try --exclusive and --bind auto.",
    "stragglers": "Look at its node, too.",
    "data": "Ask for --cpus-per-task to match, and put the data nearer to the nodes.",
}
"""What can be tried besides where the ranks are not all on this machine."""


def groups_of(found: Achieved) -> dict[str, float]:
    """A step's seconds by group; empty when its phases are not known."""
    phases = found.phases
    if not phases:
        return {}
    parts = {
        name: sum(phases.get(phase, 0.0) for phase in own) for name, own in GROUPS.items() if own
    }
    parts["stragglers"] = min(found.waiting or 0.0, parts["communication"])
    parts["communication"] -= parts["stragglers"]
    parts["step"] = 0.0
    if "forward" not in phases:
        parts["step"], parts["other"] = parts["other"], 0.0
    return {name: parts[name] for name in GROUPS}


def lost_time(first: Achieved, here: Achieved, shrink: float) -> dict[str, float]:
    """Seconds of a step here beyond the ideal, by group.

    ``shrink`` is what becomes of a step in the ideal case: its time at the smallest size over the growth
    in strong scaling, the same time in weak scaling.
    """
    ideal, real = groups_of(first), groups_of(here)
    if not ideal or not real:
        return {}
    return {name: real[name] - ideal[name] * shrink for name in GROUPS}


def shares(lost: Mapping[str, float], step_seconds: float | None) -> dict[str, float]:
    """The same as shares of the step."""
    if not lost or not step_seconds:
        return {}
    return {name: value / step_seconds for name, value in lost.items()}


def biggest(lost: Mapping[str, float]) -> tuple[str, float] | None:
    """The group with the largest share, where it is worth a word."""
    if not lost:
        return None
    name = max(lost, key=lambda group: lost[group])
    return (name, lost[name]) if lost[name] >= _WORTH_NAMING else None


def loss_sentence(where: str, lost: Mapping[str, float], kind: str, *, here: bool) -> str:
    """``At 4 nodes 31 % of a step is lost to communication: …``; empty when nothing stands out.

    ``here``: all ranks were on this machine.
    """
    found = biggest(lost)
    if found is None:
        return ""
    name, share = found
    advice = (_ADVICE | (_STRONG if kind == "strong" else _WEAK))[name]
    more = "" if here else f" {_ON_NODES.get(name, '')}"
    return (
        f"At {where} {percent(share)} of a step is lost to {_MEANS[name]}: {advice}{more}".rstrip()
    )
