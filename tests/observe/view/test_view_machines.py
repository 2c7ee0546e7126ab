"""Which rank uses which GPU, and heat maps over all of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from allranks.errors import UsageError
from allranks.observe.view.heatmap_data import KINDS, heatmap, heatmap_kinds
from allranks.observe.view.node_views import gpu_of_ranks, nodes_now, ranks_now
from allranks.observe.view.run_source import AttemptSource, RunSource
from allranks.runs import Run
from view_rig import grow, make_run


def _source(run: Run) -> RunSource:
    source = RunSource(run)
    source.refresh()
    return source


def _attempt(folder: Path, devices: list[str | None], files: dict[str, list[str]]) -> AttemptSource:
    """An attempt of one node whose ranks see these devices; files: name → uuids of its GPUs."""
    attempt = folder / "1"
    for part in ("ranks", "nodes"):
        (attempt / part).mkdir(parents=True)
    for rank, seen in enumerate(devices):
        about = {"rank": rank, "local_rank": rank, "node_rank": 0, "host": "n", "devices": seen}
        (attempt / "ranks" / f"rank-{rank:05}.json").write_text(json.dumps(about))
    for name, uuids in files.items():
        gpus = [{"gpu": number, "uuid": uuid} for number, uuid in enumerate(uuids)]
        facts = {"kind": "node", "node": 0, "host": "n", "gpus": gpus}
        now = [{"gpu": number, "use": 0.1 * number} for number in range(len(uuids))]
        sample = {"kind": "sample", "time": 1.0, "cpu": 2.0, "gpus": now}
        text = json.dumps(facts) + "\n" + json.dumps(sample) + "\n"
        (attempt / "nodes" / f"node-00000{name}.jsonl").write_text(text)
    source = AttemptSource(attempt)
    source.refresh()
    return source


@pytest.mark.parametrize(
    ("devices", "gpus"),
    [
        (["0,1,2,3"] * 4, [0, 1, 2, 3]),
        (["2,3"] * 2, [2, 3]),
        (["3", "1"], [3, 1]),
        ([None, None], [0, 1]),
        ([None] * 6, [0, 1, 2, 3, 0, 1]),
        (["0,1"] * 4, [0, 1, 0, 1]),
        (["GPU-c", "GPU-aaa"], [2, 0]),
        (["MIG-x", "0"], [None, 0]),
        (["-1", ""], [None, 1]),
    ],
)
def test_the_gpu_of_a_rank(
    tmp_path: Path, devices: list[str | None], gpus: list[int | None]
) -> None:
    attempt = _attempt(tmp_path, devices, {"": ["GPU-aaa", "GPU-bbb", "GPU-ccc", "GPU-ddd"]})
    found = gpu_of_ranks(attempt)
    assert [found.get(rank, (0, None))[1] for rank in range(len(devices))] == gpus


def test_gpus_that_only_their_rank_sees(tmp_path: Path) -> None:
    """Each rank calls its GPU 0, and so does each file."""
    files = {"": ["GPU-a"], ".1": ["GPU-b"], ".2": ["GPU-c"]}
    attempt = _attempt(tmp_path, ["0", "0", "0"], files)
    assert gpu_of_ranks(attempt) == {0: (0, 0), 1: (0, 1), 2: (0, 2)}
    (node,) = nodes_now(attempt)
    assert [(gpu.gpu, gpu.uuid) for gpu in node.gpus] == [(0, "GPU-a"), (1, "GPU-b"), (2, "GPU-c")]
    assert node.cpu == 2.0


def test_a_gpu_that_is_known_by_its_own_number(tmp_path: Path) -> None:
    """Rank 1's file tells of GPU 3 only, as its CUDA_VISIBLE_DEVICES does."""
    attempt = _attempt(tmp_path, ["2", "3"], {"": [], ".1": []})
    for name, gpu in (("node-00000", 2), ("node-00000.1", 3)):
        facts = {"kind": "node", "host": "n", "gpus": [{"gpu": gpu, "uuid": f"GPU-{gpu}"}]}
        with open(attempt.path / "nodes" / f"{name}.jsonl", "a") as file:
            file.write(json.dumps(facts) + "\n")
    attempt.refresh()
    assert gpu_of_ranks(attempt) == {0: (0, 2), 1: (0, 3)}


def test_a_node_before_its_first_sample(tmp_path: Path) -> None:
    attempt = _attempt(tmp_path, ["0"], {})
    facts = {"kind": "node", "node": 0, "host": "n", "cpus": 4, "time": 7.0, "gpus": []}
    (attempt.path / "nodes" / "node-00000.jsonl").write_text(json.dumps(facts) + "\n")
    attempt.refresh()
    (node,) = nodes_now(attempt)
    assert (node.host, node.cpus, node.time, node.cpu) == ("n", 4, 7.0, None)


def test_a_straggler_is_told_with_what_made_it_one(tmp_path: Path) -> None:
    run = make_run(tmp_path, ranks=4, slow_rank=2, windows=10)
    path = run.path / "attempts" / "1" / "steps.jsonl"
    *lines, last = path.read_text().splitlines()
    even = json.dumps(json.loads(last) | {"compute_seconds": [0.18, 0.18, 0.175, 0.18]})
    path.write_text("\n".join([*lines, even]) + "\n")
    slow = ranks_now(_source(run).attempts[1], [])[2]
    assert slow.straggler
    assert slow.behind is not None
    assert slow.behind > 0.3


def test_a_rank_of_a_wild_number_is_one_row(tmp_path: Path) -> None:
    attempt = _attempt(tmp_path, ["0", "1"], {})
    (attempt.path / "ranks" / "rank-99999999.json").write_text("{}")
    attempt.refresh()
    assert [rank.rank for rank in ranks_now(attempt, [])] == [0, 1, 99999999]


def test_which_heat_maps_there_are(tmp_path: Path) -> None:
    assert heatmap_kinds(_source(make_run(tmp_path / "a"))) == list(KINDS)
    without = heatmap_kinds(_source(make_run(tmp_path / "b", gpus=False)))
    assert without == ["cpu", "step", "compute", "wait", "data"]
    (tmp_path / "run.json").write_text("{}")
    nothing = _source(Run(tmp_path))
    assert heatmap_kinds(nothing) == []
    assert (heatmap(nothing, "gpu").rows, heatmap(nothing, "gpu").values) == ([], [])
    with pytest.raises(UsageError, match="Did you mean 'power'"):
        heatmap(nothing, "powr")


def test_a_heat_map_of_ranks(tmp_path: Path) -> None:
    found = heatmap(_source(make_run(tmp_path, ranks=12, slow_rank=10)), "compute")
    assert found.rows == [f"rank {rank}" for rank in range(12)]
    assert len(found.times) == 50
    assert {len(row) for row in found.values} == {50}
    assert min(found.values[10]) > max(found.values[9])
    assert found.times == sorted(found.times)
    assert (found.unit, found.low) == ("s", 0.0)


def test_the_gpus_of_ranks(tmp_path: Path) -> None:
    found = heatmap(_source(make_run(tmp_path, ranks=6, slow_rank=1)), "gpu")
    assert found.rows == [f"rank {rank}" for rank in range(6)]
    assert (found.low, found.high) == (0.0, 1.0)
    assert min(found.values[1]) > max(found.values[5])
    memory = heatmap(_source(make_run(tmp_path / "b")), "gpu_memory")
    assert memory.high == 150_000_000_000


def test_gpus_of_which_no_rank_is_known(tmp_path: Path) -> None:
    run = make_run(tmp_path, job_id="1")
    for path in (run.path / "attempts" / "1" / "ranks").iterdir():
        path.unlink()
    found = heatmap(_source(run), "power")
    assert found.rows == [f"node1 GPU {gpu}" for gpu in range(4)]
    assert heatmap(_source(run), "cpu").rows == ["node1"]


def test_long_runs_are_cut_into_columns(tmp_path: Path) -> None:
    run = make_run(tmp_path, windows=3000, ranks=2, finished=False)
    source = _source(run)
    found = heatmap(source, "data", 100)
    assert len(found.times) == 100
    last = source.attempts[1].steps[-1]["time"]
    assert found.times[-1] == last
    assert all(value is not None for row in found.values for value in row)
    mean = sum(found.values[0]) / 100
    assert mean == pytest.approx(0.0149, rel=0.15)
    grow(run, 1)
    source.refresh()
    assert heatmap(source, "data", 100).times[-1] > last


def test_attempts_follow_each_other(tmp_path: Path) -> None:
    found = heatmap(_source(make_run(tmp_path, attempts=3, windows=300)), "step", 90)
    assert 85 <= len(found.times) <= 90
    assert len(found.breaks) == 2
    first, second = found.breaks
    assert found.times[first] - found.times[first - 1] > 90  # the time in the queue
    assert found.times[second] - found.times[second - 1] > 90


def test_only_so_many_lines_are_held(tmp_path: Path) -> None:
    source = _source(make_run(tmp_path, windows=5000, ranks=2))
    heatmap(source, "step")
    assert len(source.attempts[1].windows()) <= 481
