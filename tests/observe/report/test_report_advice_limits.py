"""Advice keeps to what is possible: what the node has, what is set already, what was really seen."""

from __future__ import annotations

from typing import Any

import pytest
from report_rig import GIB, given, gpu, life

from allranks.observe.report.model import Error

SAVING = {"phases": {"forward": 0.1, "backward": 0.1, "checkpoint": 0.05}}
GPU_FULL = {
    "state": "failed",
    "error": Error(2, "node1", 1, "", "torch.OutOfMemoryError: CUDA out of memory."),
}
EXCHANGE = {"phases": {"forward": 0.1, "backward": 0.1, "communication": 0.2}}
LOST = {"attempts": [life(1, lost_steps=300), life(2, outcome="finished")]}


@pytest.mark.parametrize(
    ("asked", "total", "command"),
    [({}, 32, "--cpus-per-task 8"), ({}, 26, ""), ({}, 24, ""), ({"exclusive": True}, 96, "")],
)
def test_no_node_gives_more_cpus_than_it_has(
    asked: dict[str, Any], total: int, command: str
) -> None:
    phases = {"data": 0.1, "forward": 0.1, "backward": 0.1}
    used = {"cpus_high": 23.5, "cpus_total": total}
    advice = given(phases=phases, requested=asked, used=used)["cpus-short"]
    assert advice.command == command
    assert ("the node has no more" in advice.text) == (command == "")


@pytest.mark.parametrize(
    ("changes", "command", "words"),
    [
        ({}, "--memory 96G", "more than its 64 GiB per node: ask for more."),
        ({"used": {"memory_total": 128 * GIB}}, "--memory 96G", "ask for more"),
        ({"used": {"memory_total": 80 * GIB}}, "", "start fewer ranks on each node, or take a part"),
        ({"requested": {"memory_is_all": True}}, "", "start fewer ranks on each node, or take a part"),
        ({"requested": {"exclusive": True}}, "", "start fewer ranks on each node, or take a part"),
        ({"scheduler": "local"}, "", "use fewer loader workers, or start fewer ranks"),
        ({"requested": {"memory_per_node": None}, "used": {"memory_limit": None}}, "", "than it had: ask"),
        ({"used": {"seconds": 5.0}}, "--memory 96G", "ask for more"),
    ],
)  # fmt: skip
def test_memory_that_ran_out(changes: dict[str, Any], command: str, words: str) -> None:
    advice = given(state="out of memory", **changes)["memory-out"]
    assert advice.command == command
    assert words in advice.text


def test_a_machine_of_your_own_is_not_asked_for_memory() -> None:
    advice = given(scheduler="local", used={"memory": 62 * GIB})["memory-tight"]
    assert advice.command == ""
    assert "fewer loader workers" in advice.text


@pytest.mark.parametrize(
    ("state", "seconds", "cut"),
    [("completed", 100.0, True), ("running", 100.0, False), ("failed", 100.0, False),
     ("running", 3600.0, True), ("timeout", 3600.0, True)],
)  # fmt: skip
def test_less_is_advised_when_all_was_seen(state: str, seconds: float, cut: bool) -> None:
    wasteful = {"cpus_per_node": 224, "cpus_per_task": 56, "memory_per_node": 512 * GIB}
    found = given(
        state=state, ended=state != "running", requested=wasteful, used={"seconds": seconds}
    )
    assert {"cpus", "memory"} & set(found) == ({"cpus", "memory"} if cut else set())


def test_accounting_of_a_job_that_did_not_complete_cuts_nothing() -> None:
    mean = {"source": "accounting", "cpus": 1.0, "cpus_high": None, "gpus": [], "samples": 2}
    asked = {"cpus_per_node": 96, "cpus_per_task": 24}
    assert "cpus" in given(kind="job", requested=asked, used=mean, phases={}, typical={})
    cancelled = given(
        kind="job", state="cancelled", requested=asked, used=mean, phases={}, typical={}
    )
    assert cancelled == {}


@pytest.mark.parametrize(
    ("settings", "command"),
    [
        ({"accumulate": "1"}, "TrainConfig(accumulate=2, activation_checkpointing=True)"),
        ({"accumulate": "4", "activation_checkpointing": "True"}, "TrainConfig(accumulate=8)"),
        ({}, ""),
    ],
)
def test_a_full_gpu_gets_what_is_not_on_already(settings: dict[str, str], command: str) -> None:
    advice = given(**GPU_FULL, settings=settings)["gpu-memory-out"]
    assert advice.command == command
    assert "halve the batch_size" in advice.text
    assert ("recompute" in advice.text) == ("activation_checkpointing" not in settings)
    sharded = given(**GPU_FULL, settings={"strategy": "fsdp"})["gpu-memory-out"]
    assert "shard" not in sharded.text


@pytest.mark.parametrize(
    ("name", "precision"),
    [("NVIDIA H200", "bf16"), ("Tesla V100-SXM2-32GB", "fp16"), ("Tesla T4", "fp16"), ("", "bf16")],
)
def test_half_precision_is_one_that_the_gpu_has(name: str, precision: str) -> None:
    found = given(
        typical={"mfu": 0.1}, settings={"precision": "fp32"}, used={"gpus": [gpu(name=name)]}
    )
    assert found["mfu"].command == f"TrainConfig(precision='{precision}')"


def test_accumulated_gradients_have_an_end() -> None:
    case = EXCHANGE
    more = given(**case)["communication"]
    assert more.command == "TrainConfig(accumulate=2)"
    assert "enlarge the global batch" in more.text
    assert given(**case, settings={"accumulate": "8"})["communication"].command == ""
    alone = given(**case, requested={"nodes": 1})["communication"]
    assert "Otherwise" not in alone.text


def test_parts_that_differ_are_not_judged_together() -> None:
    assert given(mixed=True, requested={"memory_per_node": 512 * GIB}) == {}


@pytest.mark.parametrize(
    ("settings", "lost", "command"),
    [
        ({"checkpoint_every_steps": "500"}, 300, "TrainConfig(checkpoint_every_steps=100)"),
        ({"checkpoint_every_steps": "60"}, 300, "TrainConfig(checkpoint_every_steps=30)"),
        ({"checkpoint_every_time": "1h"}, 3, "TrainConfig(checkpoint_every_time='15m')"),
        ({"checkpoint_every_time": "10m"}, 3, "TrainConfig(checkpoint_every_time='5m')"),
        ({"checkpoint_every_time": "?"}, 3, "TrainConfig(checkpoint_every_time='15m')"),
    ],
)
def test_more_checkpoints_are_more_than_now(
    settings: dict[str, str], lost: int, command: str
) -> None:
    lives = [life(1, lost_steps=lost, last_step=lost + 1), life(2, outcome="finished")]
    assert given(settings=settings, attempts=lives)["lost-work"].command == command


@pytest.mark.parametrize(
    ("settings", "command"),
    [
        ({"checkpoint_every_time": "1h"}, "TrainConfig(checkpoint_every_time='7h')"),
        ({"checkpoint_every_steps": "100"}, "TrainConfig(checkpoint_every_steps=700)"),
        ({"checkpoint_async": "False", "checkpoint_every_steps": "100"}, "TrainConfig(checkpoint_async=True)"),
        ({"checkpoint_every": "0"}, ""),  # only the best and the last are saved
    ],
)  # fmt: skip
def test_fewer_checkpoints_are_fewer_than_now(settings: dict[str, str], command: str) -> None:
    found = given(**SAVING, settings=settings)
    assert found["checkpoints"].command == command


def test_more_and_fewer_checkpoints_are_not_advised_at_once() -> None:
    found = given(**SAVING | LOST)
    assert "lost-work" in found
    assert "checkpoints" not in found


def test_past_the_time_limit_in_some_ways() -> None:
    assert given(state="timeout")["time-out"].command == "--requeue"
    own_loop = given(state="timeout", settings={})["time-out"]
    assert "If your script saves and resumes" in own_loop.text
    assert own_loop.command == "--time 4h"
    for kind in ("run", "job"):
        assert given(state="timeout", kind=kind, requested={"time_limit": None})["time-out"]
    again = given(state="timeout", plan_values=[("requeue", "True", "command line")])["time-out"]
    assert again.command == "allranks resume train-20261115-031606"
    assert given(state="timeout", kind="job")["time-out"].command == "#SBATCH --time=04:00:00"
