"""What is read out of the samples: peaks of every line, means of the training, GPUs of the job alone."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from report_rig import GIB, facts, gpu

from allranks.cluster.slurm.job_states import JobState
from allranks.cluster.slurm.job_usage import Usage, joined
from allranks.observe.report.advice import advise
from allranks.observe.report.external_job import external_job_facts
from allranks.observe.report.job_records import allocated_resources
from allranks.observe.report.measured_usage import MOST, sampled_usage, without_foreign_gpus
from allranks.observe.report.report_plots import report_plots
from allranks.observe.report.report_tables import resource_uses
from allranks.observe.report.run_facts import run_facts
from allranks.observe.report.training_summary import slow_ranks
from allranks.observe.report.verdict import tiles, verdict
from allranks.observe.view.run_source import RunSource
from allranks.runs import Run
from view_rig import make_run

END = 1_794_800_000.0


def source_of(run: Run) -> RunSource:
    source = RunSource(run)
    source.refresh()
    return source


def rewrite(run: Run, samples: list[dict[str, Any]]) -> None:
    """The samples of the first node in place of those that the rig has made."""
    path = run.path / "attempts" / "1" / "nodes" / "node-00000.jsonl"
    facts_line = path.read_text().splitlines()[0]
    path.write_text("\n".join([facts_line, *map(json.dumps, samples), ""]))


def sample(time: float, held: float, **gpu_values: Any) -> dict[str, Any]:
    values = {"gpu": 0, "use": 0.9, "memory": 10 * GIB, "power": 100.0} | gpu_values
    return {
        "kind": "sample", "time": time, "seconds": 5.0, "cpu": 4.0, "memory": int(held), "gpus": [values],
    }  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return make_run(tmp_path, ranks=1, gpus_per_node=1, windows=50, end=END)


def began(run: Run) -> float:
    progress = json.loads((run.path / "attempts" / "1" / "progress.json").read_text())
    return float(progress["began"])


def test_what_came_before_the_first_step_counts_for_peaks_and_energy_only(run: Run) -> None:
    start = began(run)
    loading = [sample(start - 5 * n, 90 * GIB, use=0.0, memory=70 * GIB) for n in (3, 2, 1)]
    training = [sample(start + 5 * n, 20 * GIB) for n in range(10)]
    rewrite(run, loading + training)
    used = sampled_usage(source_of(run))
    assert used.memory == 90 * GIB
    assert used.gpus[0].memory == 70 * GIB
    assert used.gpus[0].use == pytest.approx(0.9)
    assert used.energy == pytest.approx(13 * 5 * 100.0)
    assert (used.samples, used.seconds) == (10, 45.0)


def test_a_single_peak_of_a_long_run_is_found_and_drawn(run: Run) -> None:
    start = began(run)
    rows = [sample(start + 5 * n, 20 * GIB) for n in range(4 * MOST)]
    rows[3001] = sample(start + 5 * 3001, 120 * GIB, memory=100 * GIB)
    rewrite(run, rows)
    source = source_of(run)
    used = sampled_usage(source)
    assert (used.memory, used.gpus[0].memory) == (120 * GIB, 100 * GIB)
    assert used.energy == pytest.approx(4 * MOST * 5 * 100.0)
    memory = next(each.svg for each in report_plots(source) if each.id == "memory")
    assert ">120<" in memory or ">150<" in memory  # the highest tick


def test_gpus_of_others_are_left_out() -> None:
    found = facts(used={"gpus": [gpu(n) for n in range(8)], "energy": 3.6e6})
    assert without_foreign_gpus(found.used, facts().requested).gpus == ()
    used = without_foreign_gpus(found.used, facts().requested)
    shown = facts(used=vars(used))
    assert not {"GPU use", "Energy"} & {tile.title for tile in tiles(shown)}
    assert not [use for use in resource_uses(shown) if "GPU" in use.title]
    assert without_foreign_gpus(facts().used, facts().requested) == facts().used
    assert (
        without_foreign_gpus(found.used, facts(requested={"gpus_per_node": None}).requested)
        == found.used
    )


def test_the_run_says_that_its_gpus_cannot_be_told(tmp_path: Path) -> None:
    run = make_run(tmp_path, ranks=2, gpus_per_node=4, windows=30, job_id="4711", end=END)
    plan = json.loads((run.path / "plan.json").read_text())
    plan["shape"]["gpus_per_node"] = "1"
    (run.path / "plan.json").write_text(json.dumps(plan))
    found, _ = run_facts(Run.open(run.path))
    assert found.used.gpus == ()
    assert any("more GPUs than were requested" in each for each in found.limitations)


def slow_run(root: Path, hosts: list[dict[int, str]], slow: list[int]) -> Run:
    """An attempt for each: which rank was slow, and which ranks were elsewhere than the rig has them."""
    run = make_run(root, ranks=8, windows=60, attempts=len(slow), job_id="4711", end=END)
    for number, (moved, rank) in enumerate(zip(hosts, slow, strict=True), 1):
        folder = run.path / "attempts" / str(number)
        for place, host in moved.items():
            path = folder / "ranks" / f"rank-{place:05}.json"
            path.write_text(json.dumps(json.loads(path.read_text()) | {"host": host}))
        lines = (folder / "steps.jsonl").read_text().splitlines()
        windows = [json.loads(line) for line in lines]
        for window in windows:
            window["compute_seconds"][rank] *= 1.5
        (folder / "steps.jsonl").write_text("".join(json.dumps(each) + "\n" for each in windows))
    return run


@pytest.mark.parametrize(
    ("hosts", "slow", "is_the_node"),
    [
        ([{}], [5], False),
        ([{}, {}], [5, 5], False),  # its data may be the longest each time
        ([{}, {}], [6, 5], True),  # another rank was slow there
        ([{5: "node1"}, {}], [5, 5], False),  # it is the rank
        ([{5: "node1"}, {}], [1, 5], True),  # the rank was fine elsewhere
        ([dict.fromkeys(range(8), "node2")] * 2, [6, 5], False),  # there is no other node
    ],
)
def test_whether_a_node_or_a_rank_is_slow(
    tmp_path: Path, hosts: list[dict[int, str]], slow: list[int], is_the_node: bool
) -> None:
    found = slow_ranks(source_of(slow_run(tmp_path, hosts, slow)))
    assert [(each.rank, each.host, each.node_is_slow) for each in found] == [
        (5, "node2", is_the_node)
    ]
    assert found[0].behind == pytest.approx(0.5, abs=0.1)


def test_of_two_ranks_the_slow_one_is_found(tmp_path: Path) -> None:
    run = make_run(tmp_path, ranks=2, gpus_per_node=2, windows=40, slow_rank=1, end=END)
    assert [each.rank for each in slow_ranks(source_of(run))] == [1]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, "It completed; from what was measured there is nothing to change."),
        ({"state": "preempted"}, "It was preempted; from what was measured there is nothing to change."),
        ({"state": "cancelled"}, "It was cancelled; from what was measured there is nothing to change."),
        ({"state": "unknown"}, "How it ended is unknown; from what was measured there is nothing to change."),
        ({"used": {"gpus": []}}, "It completed; how its GPUs were used is unknown."),
        ({"used": {"gpus": []}, "requested": {"gpus_per_node": None, "gpus": 3}},
         "It completed; how its GPUs were used is unknown."),
        ({"used": {"seconds": 5.0}}, "It completed; it was too short to judge its use of resources."),
        ({"used": {"source": "", "seconds": 0.0}}, "It completed; how it used its resources is unknown."),
        ({"state": "running", "ended": False, "used": {"seconds": 5.0}}, "It is running; it is too early to judge"),
        ({"state": "timeout", "requested": {"time_limit": None}}, "It ran out of time: look at the advice first."),
        ({"state": "out of memory", "requested": {"memory_per_node": None}, "used": {"memory_limit": None}},
         "It ran out of memory: look at the advice first."),
        ({"typical": {"mfu": 0.1}}, "It completed; from what was measured there is little to change."),
        ({"phases": {"data": 1.0}}, "It completed; 1 change would make it cheaper or faster."),
        ({"mixed": True}, "It completed; see the reports of its parts for their use of resources."),
    ],
)  # fmt: skip
def test_the_verdict_begins_with_how_it_ended(changes: dict[str, Any], sentence: str) -> None:
    found = facts(**changes)
    assert verdict(found, advise(found)).startswith(sentence)


def test_what_the_nodes_do_not_have_alike_is_not_told_per_node() -> None:
    even = allocated_resources(Usage("12", nodes=2, cpus=8, gpus=4, tasks=4, memory=64 * GIB))
    assert (even.cpus_per_node, even.gpus_per_node, even.tasks_per_node) == (4, 2, 2)
    odd = allocated_resources(Usage("12", nodes=2, cpus=9, gpus=3, tasks=3, memory=64 * GIB))
    assert (odd.cpus_per_node, odd.gpus_per_node, odd.tasks_per_node) == (None, None, None)
    assert (odd.gpus, odd.has_gpus) == (3, True)


def test_a_heterogeneous_job_is_not_judged_as_a_whole() -> None:
    parts = [
        Usage(f"12+{n}", state=JobState.COMPLETED, nodes=1, cpus=64, seconds=3600, total_seconds=3600,
              memory=256 * GIB, cpu_seconds=3600.0)
        for n in (0, 1)
    ]  # fmt: skip
    now = datetime.fromtimestamp(END, timezone.utc)
    assert "cpus" in {each.id for each in advise(external_job_facts(parts[0], now=now))}
    whole = external_job_facts(joined("12", parts), now=now)
    assert advise(whole) == []
    assert whole.requested.cpus_per_node is None
    assert any("allranks report --job 12+0" in each for each in whole.limitations)
