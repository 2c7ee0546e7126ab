"""One look at a run, whatever it has and lacks."""

from __future__ import annotations

import json
import math
import os
import random
import time
from pathlib import Path

import pytest

from allranks.cluster.slurm.job_states import JobState
from allranks.core.formatting import clean
from allranks.observe.view.diagnostics import diagnostics
from allranks.observe.view.heatmap_data import heatmap, heatmap_kinds
from allranks.observe.view.model import PHASES
from allranks.observe.view.run_source import RunSource
from allranks.observe.view.run_view import view_run
from allranks.observe.view.view_json import view_record
from allranks.runs import Run
from allranks.runs.metrics_tables import TABLES
from allranks.schedulers.run_state import RunStatus
from view_rig import TRACEBACK, grow, look, make_run


def test_a_finished_run(tmp_path: Path) -> None:
    found = look(make_run(tmp_path, ranks=8, slow_rank=5))
    assert found.status.state is JobState.COMPLETED
    assert found.progress.share == 1.0
    assert (found.progress.eta_seconds, found.progress.deadline) == (None, None)
    assert (found.progress.epoch, found.progress.epochs) == (5, 5)
    assert found.loss[0][1] > 2 * found.loss[-1][1]
    assert len(found.val_loss) == 5
    assert found.values["val_accuracy"] < 1
    assert list(found.phases) == list(PHASES)
    assert [node.host for node in found.nodes][1] == "node2"
    assert [(rank.rank, rank.gpu.gpu) for rank in found.ranks if rank.gpu] == [
        (rank, rank % 4) for rank in range(8)
    ]
    assert [rank.rank for rank in found.ranks if rank.straggler] == [5]
    assert found.ranks[5].behind == pytest.approx(0.42, abs=0.08)
    assert found.error is None
    assert found.last_lines[-1].startswith("step 500 loss")


def test_a_running_one(tmp_path: Path) -> None:
    run = make_run(tmp_path, finished=False, windows=40)
    found = look(run)
    assert found.status.state is JobState.RUNNING
    assert found.progress.total_steps == 610
    assert found.progress.saved_step == 400
    pace = sum(found.phases.values())
    assert found.progress.eta_seconds == pytest.approx(210 * pace, rel=0.2)
    assert time.time() - 60 < found.nodes[0].time <= time.time()
    assert found.progress.deadline is not None
    assert found.progress.deadline > time.time() + 11 * 3600
    grow(run, 2)
    later = look(run)
    assert (found.progress.step, later.progress.step) == (400, 420)


def test_a_failed_one(tmp_path: Path) -> None:
    found = look(make_run(tmp_path, failed=True))
    assert found.status.state is JobState.FAILED
    assert found.error is not None
    assert (found.error.rank, found.error.traceback) == (2, TRACEBACK)
    assert [rank.rank for rank in found.ranks if rank.failed] == [2]
    assert found.last_lines[-1].startswith("torch.OutOfMemoryError")


def test_several_attempts(tmp_path: Path) -> None:
    found = look(make_run(tmp_path, attempts=3, windows=60))
    assert [entry.outcome for entry in found.attempts] == ["timed out", "timed out", "finished"]
    assert [entry.first_step for entry in found.attempts] == [0, 200, 400]
    assert found.goodput is not None
    assert 0.4 < (found.goodput.share or 0) < 0.95
    assert found.progress.step == 600


def test_a_script_that_measures_nothing(tmp_path: Path) -> None:
    run = make_run(tmp_path, windows=3)
    (run.path / "metrics.jsonl").unlink()
    for name in ("steps.jsonl", "progress.json", "environment.txt"):
        (run.path / "attempts" / "1" / name).unlink()
    found = look(run)
    assert found.progress.step is None
    assert (found.values, found.loss, found.phases) == ({}, [], {})
    assert len(found.ranks) == 4
    assert found.ranks[3].gpu is not None
    assert found.ranks[3].step_seconds is None


def test_a_run_without_gpus_and_without_samples(tmp_path: Path) -> None:
    found = look(make_run(tmp_path / "a", gpus=False, ranks=2))
    assert found.nodes[0].gpus == []
    assert found.nodes[0].cpu
    assert [rank.gpu for rank in found.ranks] == [None, None]
    run = make_run(tmp_path / "b")
    (run.path / "attempts" / "1" / "nodes" / "node-00000.jsonl").unlink()
    found = look(run)
    assert found.nodes == []
    assert [rank.gpu for rank in found.ranks] == [None] * 4


def test_a_run_that_waits(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"scheduler": "slurm", "job_ids": ["5"]}')
    run = Run(tmp_path)
    found = look(run, RunStatus(run, JobState.PENDING, "5", why="waiting for nodes"))
    assert found.status.why == "waiting for nodes"
    assert (found.nodes, found.ranks, found.attempts, found.goodput) == ([], [], [], None)
    assert found.progress.share is None
    (tmp_path / "slurm-5.out").write_text("a word\nanother\n")
    assert look(run, RunStatus(run, JobState.PENDING)).last_lines == ["a word", "another"]


def test_a_loss_that_is_not_finite(tmp_path: Path) -> None:
    run = make_run(tmp_path, windows=3)
    line = {"time": time.time(), "step": 40, "kind": "train", "train_loss": None}
    with open(run.path / "metrics.jsonl", "a") as file:
        file.write(json.dumps(line | {"nonfinite": ["train_loss"]}) + "\n")
    found = look(run)
    assert math.isnan(found.values["train_loss"])
    assert view_record(found)["values"]["train_loss"] is None
    assert view_record(found)["nonfinite"] == ["train_loss"]
    assert len(found.loss) == 3


def test_a_validation_that_is_not_finite(tmp_path: Path) -> None:
    """The last good one is not shown in its place, nor the bad one once a good one has come."""
    run = make_run(tmp_path, windows=20)
    line = {"time": time.time(), "step": 200, "kind": "val", "val_loss": None}
    with open(run.path / "metrics.jsonl", "a") as file:
        file.write(json.dumps(line | {"nonfinite": ["val_loss"]}) + "\n")
    found = look(run)
    assert math.isnan(found.values["val_loss"])
    assert math.isfinite(found.values["train_loss"])
    with open(run.path / "metrics.jsonl", "a") as file:
        file.write(json.dumps(line | {"val_loss": 0.25}) + "\n")
    assert look(run).values["val_loss"] == 0.25


def test_a_line_of_a_log_is_shown_as_far_as_it_can_be(tmp_path: Path) -> None:
    run = make_run(tmp_path, windows=3)
    with open(run.path / "attempts" / "1" / "ranks" / "rank-00000.log", "a") as file:
        file.write("2026-11-15T10:00:00.000000Z o " + "x" * 100_000 + "\n")
    assert len(look(run).last_lines[-1]) == 2000


def test_a_script_that_trains_twice(tmp_path: Path) -> None:
    """The curve is that of the training under way."""
    run = make_run(tmp_path, windows=10)
    with open(run.path / "metrics.jsonl", "a") as file:
        for step in (5, 10):
            line = {"time": time.time(), "step": step, "kind": "train", "train_loss": 0.1 * step}
            file.write(json.dumps(line) + "\n")
    assert look(run).loss == [(5.0, 0.5), (10.0, 1.0)]


def test_files_full_of_rubbish(tmp_path: Path) -> None:
    run = make_run(tmp_path, attempts=2, failed=True)
    for path in run.path.rglob("*"):
        if path.is_file() and path.suffix in (".json", ".jsonl", ".log", ".txt", ".sh"):
            data = path.read_bytes()
            path.write_bytes(
                data[: len(data) // 2] + b"\xff\x00{]\n" + b'{"gpus": 7, "step": "x"}\n'
            )
    found = look(run)
    assert len(found.attempts) == 2


ODD = (None, "x", "", [], {}, -1, True, 1e308, 10**400, math.nan, [None, "a", 3], {"gpu": "x"})


def _changed(value: object, chance: random.Random) -> object:
    """The same with some values of another kind, and some left out."""
    if chance.random() < 0.08:
        return chance.choice(ODD)
    if isinstance(value, dict):
        kept = {name: each for name, each in value.items() if chance.random() > 0.03}
        return {name: _changed(each, chance) for name, each in kept.items()}
    return [_changed(each, chance) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("seed", range(8))
def test_values_of_the_wrong_kind(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    run = make_run(tmp_path, attempts=2, windows=8, failed=seed % 2 == 0)
    for path in run.path.rglob("*.jsonl"):
        rows = [_changed(json.loads(line), chance) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for path in run.path.rglob("rank-*.json"):
        path.write_text(json.dumps(_changed(json.loads(path.read_text()), chance)))
    source = RunSource(run)
    source.refresh()
    assert len(view_record(view_run(source))["attempts"]) == 2
    for kind in heatmap_kinds(source):
        found = heatmap(source, kind)
        assert {len(row) for row in found.values} <= {len(found.times)}
    for table in TABLES:
        assert len({len(values) for values in run.metrics().columns(table).values()}) <= 1


def test_what_a_snapshot_is_as_json(tmp_path: Path) -> None:
    found = json.loads(json.dumps(view_record(look(make_run(tmp_path, attempts=2)))))
    assert found["status"]["state"] == "COMPLETED"
    assert found["progress"]["share"] == 1.0
    assert found["nodes"][0]["gpus"][0]["name"] == "NVIDIA H200"
    assert found["ranks"][1]["gpu"]["gpu"] == 1
    assert found["attempts"][0]["outcome"] == "timed out"
    assert found["goodput"]["useful_seconds"] > 0
    assert found["loss"][0][0] == 10.0


def test_a_failure_as_json(tmp_path: Path) -> None:
    found = view_record(look(make_run(tmp_path, failed=True)))["error"]
    assert (found["rank"], found["how"]) == (2, "exit code 1")
    assert found["error"].startswith("torch.OutOfMemoryError: CUDA out of memory.")
    assert found["traceback"].startswith("Traceback")


def test_control_characters_do_not_reach_a_terminal() -> None:
    text = "\x1b[31mred\x1b[0m \x1b]0;title\x07and\x1b[2J a\tb\x9b1m\r\x00"
    assert clean(text) == "red and a    b1m"


def test_pipes_in_place_of_files_are_not_waited_for(tmp_path: Path) -> None:
    run = make_run(tmp_path, windows=3, failed=True)
    (run.path / "slurm-1.out").touch()
    (run.path / "resubmitted").touch()
    (run.path / "attempts" / "1" / "interrupted").touch()
    for path in [path for path in run.path.rglob("*") if path.is_file()]:
        path.unlink()
        os.mkfifo(path)
    found = look(Run(run.path))
    assert (found.values, found.last_lines, found.nodes) == ({}, [], [])
    assert [each.source for each in diagnostics(run)] == ["run"]
    for table in TABLES:
        assert run.metrics().columns(table) == {}
