"""Facts of a run that did everything right: what tests of advice change one thing of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from allranks.observe.report.advice import Advice, advise
from allranks.observe.report.model import (
    AttemptFacts,
    GpuUsed,
    RequestedResources,
    RunFacts,
    UsedResources,
)

GIB = 2**30


def gpu(number: int = 0, host: str = "node1", **changes: Any) -> GpuUsed:
    return replace(
        GpuUsed(
            0, host, number, "NVIDIA H200", use=0.95, memory=118 * GIB, memory_total=140 * GIB,
            power=600.0, power_limit=700.0, temperature=66.0,
        ),
        **changes,
    )  # fmt: skip


def facts(**changes: Any) -> RunFacts:
    """``asked`` and ``used`` may be given as dicts of what differs."""
    asked = RequestedResources(
        nodes=2, ranks=8, ranks_per_node=4, tasks_per_node=4, cpus_per_task=6, cpus_per_node=24,
        memory_per_node=64 * GIB, gpus_per_node=4, time_limit=2 * 3600,
    )  # fmt: skip
    used = UsedResources(
        source="samples", seconds=3600.0, samples=300, cpus=16.0, cpus_high=18.0, cpus_host="node1",
        cpus_allowed=24, memory=40 * GIB, memory_host="node1", memory_limit=64 * GIB,
        gpus=[gpu(number, host) for host in ("node1", "node2") for number in range(4)],
    )  # fmt: skip
    found = RunFacts(
        name="train",
        id="train-20261115-031606",
        kind="run",
        state="completed",
        exit_code=0,
        scheduler="slurm",
        seconds=4000.0,
        requested=replace(asked, **changes.pop("requested", {})),
        used=replace(used, **changes.pop("used", {})),
        phases={"data": 0.01, "forward": 0.06, "backward": 0.12, "communication": 0.02},
        typical={"mfu": 0.45},
        step=1000,
        total_steps=1000,
        settings={"precision": "bf16", "compile": "auto", "accumulate": "1"},
    )
    return replace(found, **changes)


def given(**changes: Any) -> dict[str, Advice]:
    """The advice on such facts, by its id."""
    return {advice.id: advice for advice in advise(facts(**changes))}


def life(number: int = 1, **changes: Any) -> AttemptFacts:
    return replace(
        AttemptFacts(number, "12", None, 1800.0, ["node1"], 0, 500, 500, "timed out", ""), **changes
    )
