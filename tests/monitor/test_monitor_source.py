"""A run is followed as it grows, and read whole at any moment."""

from __future__ import annotations

import json
from pathlib import Path

from allranks.monitor.columns import Columns
from allranks.monitor.snapshot import take
from allranks.monitor.source import Source
from allranks.runs import Run
from allranks.slurm.states import State
from monitor_rig import grow, make_run


def _source(run: Run, task: str | None = None) -> Source:
    source = Source(run, task)
    source.refresh()
    return source


def test_a_growing_run(tmp_path: Path) -> None:
    run = make_run(tmp_path, windows=20, finished=False)
    source = _source(run)
    assert not source.refresh()
    assert source.train["step"][-1] == 200
    assert len(source.val) == 2
    before = len(source.attempts[1].nodes[0].samples)
    grow(run, 30)
    assert source.refresh()
    assert source.train["step"] == [10 * n for n in range(1, 51)]
    assert len(source.attempts[1].steps) == 50
    assert source.attempts[1].steps[-1]["step"] == 500
    assert len(source.attempts[1].nodes[0].samples) > before
    assert source.train.names == _source(run).train.names
    assert source.train["train_loss"] == _source(run).train["train_loss"]


def test_another_attempt_comes_and_takes_lines_back(tmp_path: Path) -> None:
    run = make_run(tmp_path, windows=20, finished=False)
    source = _source(run)
    kept = (run.path / "metrics.jsonl").read_text().splitlines(keepends=True)[:12]
    (run.path / "new").write_text("".join(kept))
    (run.path / "new").replace(run.path / "metrics.jsonl")
    (run.path / "attempts" / "2").mkdir()
    (run.path / "attempts" / "2" / "attempt.json").write_text('{"attempt": 2}')
    assert source.refresh()
    assert source.train["step"][-1] == 100
    assert list(source.attempts) == [1, 2]
    assert source.last is source.attempts[2]
    assert source.attempts[1].settled
    assert not source.refresh()


def test_changes_of_small_files_are_noticed(tmp_path: Path) -> None:
    run = make_run(tmp_path, windows=5, finished=False)
    source = _source(run)
    (run.path / "attempts" / "1" / "end.json").write_text('{"exit_code": 1}')
    assert source.refresh()
    assert source.attempts[1].attempt.exit_code == 1
    assert not source.refresh()


def test_ranks_that_begin_later(tmp_path: Path) -> None:
    run = make_run(tmp_path, ranks=2, windows=5, finished=False)
    source = _source(run)
    assert [rank.rank for rank in source.attempts[1].ranks] == [0, 1]
    path = run.path / "attempts" / "1" / "ranks" / "rank-00002.json"
    path.write_text('{"rank": 2, "host": "later"}')
    assert source.refresh()
    assert source.attempts[1].ranks[-1].host == "later"


def test_nothing_is_there_yet(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    source = _source(Run(tmp_path))
    assert not source.refresh()
    assert source.last is None
    assert (len(source.train), source.train["step"], source.tasks) == (0, [], [])


def test_nothing_is_written(tmp_path: Path) -> None:
    run = make_run(tmp_path, attempts=2, failed=True)
    before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}
    _source(run)
    assert {path: path.stat().st_mtime_ns for path in run.path.rglob("*")} == before


def test_an_array_follows_one_task(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"array": "0-1"}')
    for number, task in enumerate(("0", "1"), 1):
        for folder in (f"attempts/{number}", f"tasks/{task}"):
            (tmp_path / folder).mkdir(parents=True)
        about = json.dumps({"attempt": number, "array_task": task})
        (tmp_path / f"attempts/{number}/attempt.json").write_text(about)
        line = json.dumps({"kind": "train", "step": number * 10, "time": 1.0})
        (tmp_path / f"tasks/{task}/metrics.jsonl").write_text(line + "\n")
    newest, first = _source(Run(tmp_path)), _source(Run(tmp_path), "0")
    assert newest.tasks == ["0", "1"]
    assert (newest.task, newest.train["step"], list(newest.attempts)) == ("1", [20], [2])
    assert (first.task, first.train["step"], list(first.attempts)) == ("0", [10], [1])


def test_the_loss_is_not_finite(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    lines = [
        {"kind": "train", "step": 1, "train_loss": 2.0},
        {"kind": "train", "step": 2, "train_loss": None, "nonfinite": ["train_loss"]},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    source = _source(Run(tmp_path))
    assert source.train["train_loss"] == [2.0, None]
    assert source.nonfinite == ["train_loss"]


def test_a_run_that_goes_on_in_another_job(tmp_path: Path) -> None:
    run = make_run(tmp_path, windows=3, job_id="7")
    source = _source(run)
    (run.path / "resubmitted").write_text("8\n")
    assert source.refresh()
    assert source.run.job_ids == ["7", "8"]
    assert not source.refresh()


def test_a_run_that_is_removed(tmp_path: Path) -> None:
    run = make_run(tmp_path, windows=3)
    source = _source(run)
    run.remove()
    assert source.refresh()
    assert len(source.train) == 0
    assert take(source).status.state is State.UNKNOWN


def test_columns() -> None:
    columns = Columns()
    columns.add([{"step": 1, "kind": "train"}, {"step": 2, "loss": 1}])
    columns.add([{"step": 3, "loss": None, "text": "x", "huge": 10**400}])
    assert columns.names == ["step", "loss"]
    assert columns["loss"] == [None, 1.0, None]
    assert columns["nothing"] == [None] * 3
    assert columns.part("step", -2) == [2, 3]
    assert type(columns["step"][0]) is int
    assert columns.last("loss") == 1.0
    assert columns.last("nothing") is None
    columns.clear()
    assert (len(columns), columns.names) == (0, [])
