"""A run is followed as it grows, and read whole at any moment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from allranks.cluster.slurm.job_states import JobState
from allranks.observe.view.diagnostics import diagnostics
from allranks.observe.view.heatmap_data import heatmap, heatmap_kinds
from allranks.observe.view.metric_columns import MetricColumns
from allranks.observe.view.run_source import RunSource
from allranks.observe.view.run_view import view_run
from allranks.runs import Run
from allranks.runs.metrics_tables import TABLES
from view_rig import grow, make_array, make_run


def _source(run: Run, task: str | None = None) -> RunSource:
    source = RunSource(run, task)
    source.refresh()
    return source


def _end(run: Run, attempt: int, outcome: str) -> None:
    path = run.path / "attempts" / str(attempt) / "end.json"
    path.write_text(json.dumps({"exit_code": outcome != "finished", "outcome": outcome}))


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
    _end(run, 1, "killed")
    assert source.refresh()
    assert not source.refresh()
    assert source.attempts[1].settled
    assert source.attempts[1].attempt.outcome == "killed"


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
    source = _source(run)
    view_run(source)
    for kind in heatmap_kinds(source):
        assert heatmap(source, kind).values
    assert diagnostics(run)
    for table in TABLES:
        run.metrics().columns(table)
    assert {path: path.stat().st_mtime_ns for path in run.path.rglob("*")} == before


def test_an_array_follows_one_task(tmp_path: Path) -> None:
    run = make_array(tmp_path, {"0": "finished", "1": "finished"})
    newest, first = _source(run), _source(run, "0")
    assert newest.tasks == ["0", "1"]
    assert (newest.task, newest.train["step"], list(newest.attempts)) == ("1", [20], [2])
    assert (first.task, first.train["step"], list(first.attempts)) == ("0", [10], [1])


def test_of_an_array_a_task_that_runs_comes_first(tmp_path: Path) -> None:
    run = make_array(tmp_path, {"0": "", "1": "", "2": "failed"})
    source = _source(run)
    assert source.task == "1"
    asked = _source(run, "1")
    _end(run, 2, "finished")
    for each in (source, asked):
        each.refresh()
    assert (source.task, list(source.attempts), source.train["step"]) == ("0", [1], [10])
    assert (asked.task, asked.run_attempts.running_tasks()) == ("1", ["0"])
    _end(run, 1, "finished")
    source.refresh()
    assert source.task == "0"  # without need a picture does not change its subject


def test_every_task_of_an_array(tmp_path: Path) -> None:
    run = make_array(tmp_path, {"0": "", "1": "failed"})
    source = _source(run)
    assert [(each.task, each.train["step"]) for each in source.task_sources()] == [
        ("0", [10]),
        ("1", [20]),
    ]
    assert source in source.task_sources()
    make_array(tmp_path, {"0": "", "1": "failed", "7": ""})
    source.refresh()
    assert [each.task for each in source.task_sources()] == ["0", "1", "7"]
    plain = _source(make_run(tmp_path / "plain", windows=3))
    assert plain.task_sources() == [plain]


def test_an_attempt_of_an_array_waits_for_its_name(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"array": "0-1"}')
    (tmp_path / "attempts" / "1").mkdir(parents=True)
    source = _source(Run(tmp_path))
    assert (source.task, source.attempts) == (None, {})
    (tmp_path / "attempts" / "1" / "attempt.json").write_text('{"array_task": "1"}')
    assert source.refresh()
    assert (source.task, list(source.attempts)) == ("1", [1])


def test_the_ranks_are_not_read_again_for_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be thousands of them, and progress.json changes all the time."""
    monkeypatch.setattr("allranks.observe.view.run_source.COARSE_SECONDS", 0.0)
    run = make_run(tmp_path, windows=5, finished=False)
    source = _source(run)
    ranks = source.attempts[1].ranks
    assert len(ranks) == 4
    grow(run)
    assert source.refresh()
    assert source.attempts[1].ranks is ranks


def test_files_whose_times_are_coarse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On file systems that keep whole seconds a second change leaves the same time."""
    run = make_run(tmp_path, ranks=2, windows=5, finished=False)
    monkeypatch.setattr("allranks.observe.view.run_source._stamp", lambda path: (1, 2, 3))
    source = _source(run)
    ranks = run.path / "attempts" / "1" / "ranks"
    (ranks / "rank-00002.json").write_text('{"rank": 2, "host": "later"}')
    _end(run, 1, "failed")
    assert source.refresh()
    assert source.attempts[1].ranks[-1].host == "later"
    assert source.attempts[1].attempt.outcome == "failed"
    assert not source.refresh()


def test_the_loss_is_not_finite(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    lines = [
        {"kind": "train", "step": 1, "train_loss": 2.0},
        {"kind": "train", "step": 2, "train_loss": None, "nonfinite": ["train_loss"]},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    source = _source(Run(tmp_path))
    assert source.train["train_loss"] == [2.0, None]
    assert source.nonfinite == {"train": ["train_loss"]}
    (tmp_path / "new").write_text('{"kind": "val", "step": 1, "val_loss": 2.0}\n')
    (tmp_path / "new").replace(tmp_path / "metrics.jsonl")
    source.refresh()
    assert source.nonfinite == {"val": []}


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
    assert view_run(source).status.state is JobState.UNKNOWN


def test_steps_that_are_no_numbers(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    lines = [
        '{"kind": "train", "step": 1e999, "time": 1e999, "train_loss": -1e999}',
        '{"kind": "train", "step": 1}',
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    source = _source(Run(tmp_path))
    assert source.train["step"] == [None, 1]
    assert view_run(source).progress.step == 1


def test_columns() -> None:
    columns = MetricColumns()
    columns.add([{"step": 1, "kind": "train"}, {"step": 2, "loss": 1}])
    columns.add([{"step": 3, "loss": None, "text": "x", "huge": 10**400}])
    assert columns.names == ["step", "loss"]
    assert columns["loss"] == [None, 1.0, None]
    assert columns["nothing"] == [None] * 3
    assert columns.part("step", -2) == [2, 3]
    assert type(columns["step"][0]) is int
    assert columns.last("loss") == 1.0
    assert columns.last("nothing") is None
    assert columns.curve("loss") == [(2.0, 1.0)]
    columns.add([{"step": 4, "loss": 3}])
    assert columns.curve("loss") == [(2.0, 1.0), (4.0, 3.0)]
    assert columns.curve("nothing") == []
    columns.clear()
    assert columns.curve("loss") == []
    assert (len(columns), columns.names) == (0, [])
