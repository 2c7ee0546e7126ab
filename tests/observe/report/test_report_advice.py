"""Each piece of advice is given where it holds, and only there."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from report_rig import GIB, facts, given, gpu, life

import allranks.observe.report.advice
from allranks.observe.report.advice import EXPLAINED, advise
from allranks.observe.report.advice.base import SEVERITIES, option_to_type, round_memory, round_time
from allranks.observe.report.model import Error, SlowRank


def test_a_run_that_did_everything_right_is_left_alone() -> None:
    assert given() == {}


CASES: dict[str, dict[str, Any]] = {
    "cpus": {"requested": {"cpus_per_task": 56, "cpus_per_node": 224}, "used": {"cpus_high": 36.0}},
    "memory": {"requested": {"memory_per_node": 256 * GIB}},
    "memory-tight": {"used": {"memory": 62 * GIB}},
    "memory-out": {"state": "out of memory", "exit_code": 137},
    "gpus-idle": {"used": {"gpus": [gpu(), gpu(1, use=0.0, memory=GIB)]}},
    "gpus-low": {"used": {"gpus": [gpu(n, use=0.3) for n in range(4)]}},
    "gpu-memory": {"used": {"gpus": [gpu(memory=20 * GIB)]}, "typical": {}},
    "gpu-hot": {"used": {"gpus": [gpu(), gpu(1, temperature=88.0)]}},
    "gpu-capped": {"used": {"gpus": [gpu(), gpu(1), gpu(2, power_limit=400.0)]}},
    "data": {"phases": {"data": 0.1, "forward": 0.1, "backward": 0.1}},
    "cpus-short": {
        "phases": {"data": 0.1, "forward": 0.1, "backward": 0.1},
        "used": {"cpus_high": 23.5},
    },
    "communication": {"phases": {"forward": 0.1, "backward": 0.1, "communication": 0.2}},
    "checkpoints": {"phases": {"forward": 0.1, "backward": 0.1, "checkpoint": 0.05}},
    "stragglers": {"slow": [SlowRank(5, "node2", 0.42)]},
    "mfu": {"typical": {"mfu": 0.12}},
    "failed": {"state": "failed", "exit_code": 1},
    "diverged": {"diverged": {"train_loss": 200}},
    "gpu-memory-out": {
        "state": "failed",
        "error": Error(2, "node1", 1, "", "torch.OutOfMemoryError: CUDA out of memory."),
    },
    "time": {"requested": {"time_limit": 24 * 3600}},
    "time-tight": {"requested": {"time_limit": 4200}},
    "time-out": {"state": "timeout"},
    "resume": {"state": "interrupted", "exit_code": 75, "step": 500},
    "lost-work": {
        "goodput": 0.6,
        "attempts": [life(1, lost_steps=300), life(2, outcome="finished")],
    },
    "short": {"used": {"seconds": 30.0}},
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_given_where_it_holds(name: str) -> None:
    found = given(**CASES[name])
    assert name in found
    advice = found[name]
    assert advice.severity in SEVERITIES
    assert advice.text.endswith((".", "?")) or advice.command
    assert "None" not in advice.text + advice.command


def test_every_advice_has_a_case_and_is_documented() -> None:
    room = Path(allranks.observe.report.advice.__file__).parent
    calls = [
        node
        for file in room.glob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    ids = {call.args[0].value for call in calls if call.func.id == "Advice"}
    assert ids == set(CASES)
    docs = (Path(__file__).parents[3] / "docs" / "report.md").read_text()
    assert [each for each in ids if f"`{each}`" not in docs] == []
    assert set(EXPLAINED) <= set(CASES)
    assert {cause for causes in EXPLAINED.values() for cause in causes} <= set(CASES)


SILENT: dict[str, list[dict[str, Any]]] = {
    "cpus": [
        {"requested": {"cpus_per_node": 20}, "used": {"cpus_high": 1.0}},  # 4 a rank are the least
        {"requested": {"cpus_per_node": 224, "exclusive": True}, "used": {"cpus_high": 9.0}},
        {"requested": {"cpus_per_node": 224}, "used": {"cpus": None, "cpus_high": None}},
        {"requested": {"cpus_per_node": None}},
        {"requested": {"cpus_per_node": 224}, "used": {"seconds": 20.0}},
    ],
    "memory": [
        {"requested": {"memory_per_node": 256 * GIB, "memory_is_all": True}},
        {"requested": {"memory_per_node": 256 * GIB}, "used": {"memory": None}},
        {"requested": {"memory_per_node": 80 * GIB}},
        {"requested": {"memory_per_node": 4 * GIB}, "used": {"memory": GIB}},  # little to save
    ],
    "memory-tight": [{"used": {"memory": 62 * GIB, "memory_at_most": True}}],
    "gpus-idle": [
        {"used": {"gpus": [gpu(use=None), gpu(1, use=None)]}},
        {"used": {"gpus": [gpu(use=0.0, memory=30 * GIB)]}},  # it holds a model: a server, a wait
    ],
    "gpu-memory": [{"used": {"gpus": [gpu(memory=20 * GIB)]}, "typical": {"mfu": 0.5}}],
    "gpu-capped": [{"used": {"gpus": [gpu(), gpu(1, name="NVIDIA T4", power_limit=70.0)]}}],
    "communication": [
        {"phases": {"forward": 0.1, "communication": 0.2}, "slow": [SlowRank(5, "node2", 0.42)]},
        {"phases": {"forward": 0.1, "communication": 0.2}, "requested": {"ranks": 1}},
    ],
    "data": [{"phases": {}}],
    "failed": [
        {"state": "cancelled", "error": Error(1)},
        {"state": "interrupted", "error": Error(1)},
        {"state": "running", "ended": False, "error": Error(1)},
    ],
    "time": [
        {"requested": {"time_limit": 24 * 3600}, "state": "failed"},
        {"requested": {"time_limit": 24 * 3600}, "attempts": [life(1), life(2)]},
        {"requested": {"time_limit": 1200}, "seconds": 60.0},
    ],
    "lost-work": [{"goodput": 0.6}, {"goodput": 0.9, "attempts": [life(1, lost_steps=9)]}],
    "short": [{"used": {"source": "", "seconds": 0.0}}, {"ended": False, "used": {"seconds": 5.0}}],
}


@pytest.mark.parametrize(
    ("name", "changes"), [(name, each) for name, cases in SILENT.items() for each in cases]
)
def test_it_is_not_given_where_it_would_be_wrong(name: str, changes: dict[str, Any]) -> None:
    assert name not in given(**changes)


def test_the_numbers_and_what_to_type() -> None:
    found = given(
        requested={
            "cpus_per_task": 56,
            "cpus_per_node": 56,
            "tasks_per_node": 1,
            "ranks_per_node": 1,
        },
        used={"cpus_high": 9.0},
    )
    assert found["cpus"].text == "You asked for 56 CPUs per task and used 9: 12 are enough."
    assert found["cpus"].command == "--cpus-per-task 12"


def test_fewer_ranks_than_gpus_are_named() -> None:
    idle = [gpu(), gpu(1), gpu(2, use=0.0, memory=0), gpu(3, use=0.0, memory=0)]
    advice = given(requested={"ranks_per_node": 2}, used={"gpus": idle})["gpus-idle"]
    assert "GPU 2 of node1 and GPU 3 of node1 did nothing" in advice.text
    assert advice.command == "--gpus-per-node 2"


def test_one_rank_may_work_on_several_gpus() -> None:
    gpus = [gpu(), gpu(1), gpu(2, use=0.0, memory=0), gpu(3, use=0.0, memory=0)]
    advice = given(requested={"ranks_per_node": 1}, used={"gpus": gpus})["gpus-idle"]
    assert advice.command == "--gpus-per-node 2"


def test_no_gpu_at_all_asks_for_another_torch() -> None:
    advice = given(used={"gpus": [gpu(use=0.0, memory=0)]})["gpus-idle"]
    assert "None of your 1 GPU did anything" in advice.text


def test_a_node_is_excluded_when_it_is_the_node() -> None:
    rank = given(slow=[SlowRank(5, "node2", 0.42)])["stragglers"]
    assert "rank 5 on node2: its own work took 42 % longer" in rank.text
    assert rank.command == ""
    node = given(slow=[SlowRank(5, "node2", 0.42, node_is_slow=True)])["stragglers"]
    assert node.command == "--exclude node2"
    alone = given(slow=[SlowRank(1, "node1", 0.42)], requested={"nodes": 1})["stragglers"]
    assert "exclude" not in alone.text + alone.command


def test_what_waits_for_data_is_not_called_idle_too() -> None:
    found = given(
        phases={"data": 0.2, "forward": 0.1},
        used={"gpus": [gpu(n, use=0.3) for n in range(4)]},
        typical={"mfu": 0.1},
    )
    assert set(found) == {"data"}
    assert "Each rank has 6 CPUs: give the DataLoader up to 5 workers" in found["data"].text
    assert found["data"].command.startswith("DataLoader(…, num_workers=5")
    many = given(phases={"data": 0.2, "forward": 0.1}, used={"cpus_allowed": 256})["data"]
    assert "Each rank has 64 CPUs: give the DataLoader up to 16 workers" in many.text


def test_all_cpus_busy_asks_for_more_and_not_for_workers() -> None:
    found = given(**CASES["cpus-short"])
    assert set(found) == {"cpus-short"}
    assert found["cpus-short"].command == "--cpus-per-task 9"


def test_what_was_lost_is_told_in_steps_and_time() -> None:
    advice = given(**CASES["lost-work"])["lost-work"]
    assert "300 steps of attempt 1 were lost, about 18 min of 1 h 07 min" in advice.text
    assert advice.command == "TrainConfig(checkpoint_every_steps=100)"


def test_errors_come_first() -> None:
    found = advise(
        facts(
            **CASES["memory"] | {"state": "failed", "exit_code": 1, "slow": [SlowRank(1, "n", 0.5)]}
        )
    )
    assert [advice.severity for advice in found] == ["error", "warning", "note"]


def test_a_failure_before_the_first_step_is_said_so() -> None:
    error = Error(3, "node2", 1, "", "Traceback\nModuleNotFoundError: No module named 'x'")
    advice = given(state="failed", error=error, seconds=12.0, step=None)["failed"]
    assert advice.text == (
        "It failed after 12 s, before its first step. Rank 3 on node2 failed first, exit code 1: "
        "ModuleNotFoundError: No module named 'x'"
    )
    assert advice.command == "allranks logs --errors train-20261115-031606"


def test_a_job_of_others_is_told_in_its_own_words() -> None:
    mean = {"source": "accounting", "cpus": 5.0, "cpus_high": None, "gpus": [], "samples": 2}
    found = given(
        kind="job",
        phases={},
        typical={},
        requested={"cpus_per_node": 96, "cpus_per_task": 24, "memory_per_node": 256 * GIB,
               "ranks_per_node": None, "time_limit": 48 * 3600},
        used=mean,
    )  # fmt: skip
    assert found["cpus"].command == "#SBATCH --cpus-per-task=4"  # twice the mean, but 4 per GPU
    assert "used 1.2 in the mean" in found["cpus"].text
    assert found["memory"].command == "#SBATCH --mem=48G"
    assert found["time"].command == "#SBATCH --time=01:30:00"


def test_without_the_number_of_tasks_nothing_is_to_type() -> None:
    mean = {"source": "accounting", "cpus": 5.0, "cpus_high": None, "gpus": []}
    asked = {"cpus_per_node": 96, "cpus_per_task": None, "tasks_per_node": None,
             "ranks_per_node": None}  # fmt: skip
    advice = given(kind="job", requested=asked, used=mean, phases={})["cpus"]
    assert "You had 96 CPUs per node and used 5 in the mean: 16 are enough." in advice.text
    assert advice.command == ""


def test_amounts_that_are_asked_for_are_round() -> None:
    assert round_memory(9.1 * GIB) == 10 * GIB
    assert round_memory(0.9 * GIB) == GIB
    assert round_time(4000) == 4200
    assert option_to_type(facts(), "memory", 1280 * 2**20) == "--memory 1280M"
    assert option_to_type(facts(), "time", 12600) == "--time 3h30m"
