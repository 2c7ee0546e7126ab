"""The tables of a run, for pandas, polars and plain Python."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import allranks
from allranks.errors import MissingDependencyError, RunNotFoundError, UsageError
from allranks.runs import Run
from view_rig import make_run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return make_run(tmp_path, ranks=6, gpus_per_node=4, windows=20, attempts=2)


def test_a_run_by_its_path_alone(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert allranks.Run(run.id) == allranks.Run(run.path) == Run.open(run.path)
    assert allranks.Run(run.id).path.is_absolute()
    with pytest.raises(RunNotFoundError, match="is not a run folder"):
        allranks.Run(tmp_path)


def test_the_lines_of_training_steps(run: Run) -> None:
    rows = list(run.metrics().rows())
    assert [row["step"] for row in rows] == [10 * n for n in range(1, 21)]
    assert "kind" not in rows[0]
    phases = [rows[3][f"{name}_seconds"] for name in ("data", "forward", "backward",
              "communication", "optimizer", "checkpoint", "other")]  # fmt: skip
    assert sum(phases) == pytest.approx(rows[3]["step_seconds"])


def test_columns_have_one_length(run: Run) -> None:
    with open(run.path / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"time": 1.0, "step": 210, "kind": "train", "mine": 3}) + "\n{torn")
    columns = run.metrics().columns("train")
    assert {len(values) for values in columns.values()} == {21}
    assert columns["mine"] == [None] * 20 + [3]
    assert columns["train_loss"][-1] is None
    assert run.metrics().names()[:4] == ["time", "step", "epoch", "fit"]
    assert columns["fit"] == [1] * 21
    assert run.metrics().columns(names=["step", "nothing"])["nothing"] == [None] * 21
    assert run.metrics().columns("train", "step") == {"step": columns["step"]}


def test_the_windows_of_every_rank(run: Run) -> None:
    rows = list(run.metrics().rows("ranks"))
    assert len(rows) == (20 + 3) * 6  # three windows of the first attempt were lost
    assert rows[7].keys() == {"attempt", "rank", "time", "step", "epoch", "fit", "step_seconds",
                              "data_seconds", "compute_seconds", "communication_seconds"}  # fmt: skip
    assert (rows[7]["attempt"], rows[7]["rank"], rows[7]["step"]) == (1, 1, 20)
    assert rows[-1]["attempt"] == 2


def test_nodes_and_gpus(run: Run) -> None:
    nodes = run.metrics().columns("nodes")
    assert set(nodes["node"]) == {0, 1}
    assert "gpus" not in nodes
    assert all(0 < cpu < 40 for cpu in nodes["cpu"])
    gpus = list(run.metrics().rows("gpus"))
    assert len(gpus) == sum(4 if node == 0 else 2 for node in nodes["node"])
    assert {(row["node"], row["gpu"]) for row in gpus} == {
        (0, 0),
        (0, 1),
        (0, 2),
        (0, 3),
        (1, 0),
        (1, 1),
    }
    assert gpus[0]["memory_total"] == 150_000_000_000
    assert gpus[0]["uuid"].startswith("GPU-")


def test_gpus_that_only_their_rank_sees(tmp_path: Path) -> None:
    """Each file calls its GPU 0; the uuid tells them apart, and a GPU told twice is one."""
    run = make_run(tmp_path, ranks=1, gpus=False, windows=3)
    folder = run.path / "attempts" / "1" / "nodes"
    for local, uuid in [("", "GPU-a"), (".1", "GPU-b"), (".2", "GPU-a")]:
        facts = {"kind": "node", "node": 0, "host": "n", "gpus": [{"gpu": 0, "uuid": uuid}]}
        sample = {"kind": "sample", "time": 5.0, "gpus": [{"gpu": 0, "use": 0.5}]}
        lines = json.dumps(facts) + "\n" + json.dumps(sample) + "\n"
        (folder / f"node-00000{local}.jsonl").write_text(lines)
    rows = list(run.metrics().rows("gpus"))
    assert [(row["gpu"], row["uuid"]) for row in rows] == [(0, "GPU-a"), (1, "GPU-b")]


def test_data_frames(run: Run) -> None:
    pandas = pytest.importorskip("pandas")
    polars = pytest.importorskip("polars")
    line = {"time": 1, "step": 210, "epoch": 3, "kind": "train", "train_loss": None, "grad_norm": 1}
    with open(run.path / "metrics.jsonl", "a") as file:
        file.write(json.dumps(line | {"nonfinite": ["train_loss"]}) + "\n")
    frame = run.metrics().to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert frame["train_loss"].isna().sum() == 1
    assert frame.set_index("step")["grad_norm"][210] == 1.0
    other = run.metrics().to_polars()
    assert isinstance(other, polars.DataFrame)
    assert other["train_loss"].null_count() == 1
    assert other.filter(polars.col("step") == 210)["grad_norm"].to_list() == [1.0]
    for table in ("nodes", "gpus", "ranks", "val", "test"):
        assert len(run.metrics().to_pandas(table)) == len(run.metrics().to_polars(table))


def test_a_package_that_is_missing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(MissingDependencyError, match="pip install pandas"):
        run.metrics().to_pandas()
    with pytest.raises(MissingDependencyError, match="pip install polars"):
        run.metrics().to_polars()


def test_a_table_that_is_not_there(run: Run) -> None:
    with pytest.raises(UsageError, match="Did you mean 'gpus'"):
        run.metrics().rows("gpu")


def test_a_run_without_numbers(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    metrics = allranks.Run(tmp_path).metrics()
    for table in ("train", "nodes", "gpus", "ranks"):
        assert (list(metrics.rows(table)), metrics.columns(table), metrics.names(table)) == (
            [],
            {},
            [],
        )


def test_the_tasks_of_an_array(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"array": "2,10"}')
    for task in (10, 2):
        folder = tmp_path / "tasks" / str(task)
        folder.mkdir(parents=True)
        (folder / "metrics.jsonl").write_text(f'{{"kind": "train", "step": {task}}}\n')
    assert list(allranks.Run(tmp_path).metrics().rows()) == [
        {"task": "2", "step": 2, "fit": 1},
        {"task": "10", "step": 10, "fit": 1},
    ]


def test_older_runs_that_do_not_tell_the_fit(tmp_path: Path) -> None:
    """Another one begins where the steps of the training fall; what else it wrote belongs to it."""
    lines = [("train", 5), ("train", 10), ("val", 10), ("train", 5), ("val", 5), ("train", 3)]
    text = "".join(json.dumps({"kind": kind, "step": step}) + "\n" for kind, step in lines)
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "metrics.jsonl").write_text(text + '{"kind": "train", "step": 9, "fit": 4}\n')
    metrics = allranks.Run(tmp_path).metrics()
    assert metrics.columns("train", ["fit"]) == {"fit": [1, 1, 2, 3, 4]}
    assert metrics.columns("val", ["fit"]) == {"fit": [1, 2]}


def test_a_line_of_a_kind_and_nothing_else(run: Run) -> None:
    with open(run.path / "metrics.jsonl", "a") as file:
        file.write('{"kind": "train"}\n{"kind": "test"}\n')
    columns = run.metrics().columns("train")
    assert {len(values) for values in columns.values()} == {21}
    assert run.metrics().columns("test") == {"fit": [1]}
    assert run.metrics().columns("test", ["step"]) == {"step": [None]}


def test_a_garbled_last_sample_hides_nothing(tmp_path: Path) -> None:
    from allranks.runs.node_samples import NodeSource

    run = make_run(tmp_path, ranks=2, windows=10)
    path = run.path / "attempts" / "1" / "nodes" / "node-00000.jsonl"
    node = NodeSource(0)
    node.add(0, path)
    node.refresh()
    before = node.latest(), node.host
    with open(path, "a") as file:
        file.write('{"kind": "sample", "time": 17{"kind": 3}\n{"kind": "node", "ho}\n')
    node.refresh()
    assert (node.latest(), node.host) == before
    assert before[0]["cpu"] > 0
