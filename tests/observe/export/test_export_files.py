"""Event files, CSV and the textfile: read back, run again, kept apart from what is not ours."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from openmetrics_check import read

from allranks.errors import MissingDependencyError, SlurmError, UsageError
from allranks.observe.export.prometheus import poll_runs
from allranks.observe.export.run_tables import export_events, write_csv
from allranks.runs.metrics_tables import KINDS, TABLES, Metrics
from allranks.runs.run_folder import Run
from command_rig import Allranks, until
from view_rig import grow, make_array, make_run

tensorboard = pytest.mark.skipif(
    importlib.util.find_spec("tensorboard") is None, reason="needs tensorboard"
)


def _scalars(folder: Path) -> dict[str, list[tuple[int, float, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {
        tag: [(one.step, one.wall_time, one.value) for one in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


@tensorboard
def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    run = make_run(tmp_path, ranks=4, windows=30)
    (tmp_path / "out" / "training").mkdir(parents=True)
    notes = tmp_path / "out" / "training" / "notes.txt"
    others = tmp_path / "out" / "training" / "events.out.tfevents.1.host.1.0"
    notes.write_text("mine")
    others.write_bytes(b"")
    for _ in range(2):  # a second export does not double the first
        counts = export_events(run, tmp_path / "out")
        found = _scalars(tmp_path / "out" / "training")
        rows = list(Metrics(run.path).rows("train"))
        assert [(step, value) for step, _, value in found["train_loss"]] == [
            (row["step"], pytest.approx(row["train_loss"])) for row in rows
        ]
        assert [wall for _, wall, _ in found["train_loss"]] == [row["time"] for row in rows]
        assert len(found["val_loss"]) == len(found["epoch/train_loss"]) == 3
        assert sum(map(len, found.values())) == counts[tmp_path / "out" / "training"]
        machines = _scalars(tmp_path / "out" / "machines")
        host = os.uname().nodename
        assert len(machines[f"{host}/cpu"]) == len(machines[f"{host}/gpu 3/use"]) > 1
        steps = [step for step, _, _ in machines[f"{host}/cpu"]]
        assert steps == sorted(steps)
        assert steps[0] == 0
    assert notes.read_text() == "mine"
    assert others.exists()
    assert len(list((tmp_path / "out" / "training").iterdir())) == 3


@tensorboard
def test_tensorboard_by_the_command(tmp_path: Path, allranks: Allranks) -> None:
    run = make_run(tmp_path / "runs", windows=3)
    done = allranks("export", "tensorboard", run.id)
    assert done.returncode == 0, done.stderr
    folder = run.path / "tensorboard-export"
    assert f"{folder / 'training'}  " in done.stdout
    assert f"tensorboard --logdir {folder}" in done.stderr
    done = allranks("export", "tensorboard", run.id, "-o", "my events")
    assert "tensorboard --logdir 'my events'" in done.stderr
    code = (
        "import sys; import allranks.observe.export.run_tables; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_missing_tensorboard_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path, windows=1)
    monkeypatch.setattr("allranks.observe.export.run_tables.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match="pip install tensorboard"):
        export_events(run)


ODD = [
    {"kind": "train", "step": "x", "time": 1.0, "train_loss": 1.0},
    {"kind": "train", "step": 1e999, "time": 1.0, "train_loss": 2.0},
    {"kind": "train", "step": 2, "time": None, "train_loss": 3.0},
    {"kind": "train", "step": 3, "time": 1.0, "train_\ud800": 10**400, "nonfinite": ["a", "b"]},
]


@tensorboard
def test_lines_of_rubbish_are_left_out_of_event_files(tmp_path: Path) -> None:
    run = make_run(tmp_path, windows=1)
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ODD))
    nodes = run.path / "attempts" / "1" / "nodes" / "node-00000.jsonl"
    with open(nodes, "a") as file:
        file.write('{"kind": "sample", "time": 1e999, "cpu": 1}\n')
        file.write('{"kind": "sample", "time": "x", "cpu": 1}\n')
    export_events(run, tmp_path / "out")
    lost = [(3, pytest.approx(math.nan, nan_ok=True))]
    assert {
        tag: [(step, value) for step, _, value in values]
        for tag, values in _scalars(tmp_path / "out" / "training").items()
    } == {"train_?": [(3, math.inf)], "a": lost, "b": lost}


@tensorboard
def test_a_loss_that_is_not_finite_is_marked_to_the_end(tmp_path: Path) -> None:
    run = make_run(tmp_path, windows=1)
    rows = [{"kind": "train", "time": 1.0, "step": 10, "train_loss": 1.0, "lr": 0.1}]
    lost = {"train_loss": None, "lr": 0.1, "nonfinite": ["train_loss"]}
    rows += [{"kind": "train", "time": 2.0, "step": step, **lost} for step in (20, 30)]
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    export_events(run, tmp_path / "out")
    found = _scalars(tmp_path / "out" / "training")
    assert [step for step, _, _ in found["train_loss"]] == [10, 20, 30]
    assert [math.isnan(value) for _, _, value in found["train_loss"]] == [False, True, True]
    assert set(found) == {"train_loss", "lr"}


@tensorboard
def test_the_machines_of_an_array_are_told_by_task(tmp_path: Path) -> None:
    run = make_array(tmp_path, {"0": "", "1": ""})
    for attempt in run.attempts:
        (attempt.path / "nodes").mkdir()
        lines = '{"kind": "node", "host": "n"}\n{"kind": "sample", "time": 5.0, "cpu": 1.5}\n'
        (attempt.path / "nodes" / "node-00000.jsonl").write_text(lines)
    export_events(run, tmp_path / "out")
    assert set(_scalars(tmp_path / "out" / "machines")) == {"0/n/cpu", "1/n/cpu"}
    assert set(_scalars(tmp_path / "out" / "training")) == {"0/train_loss", "1/train_loss"}


@tensorboard
def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    run = make_run(tmp_path, windows=1)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        export_events(run, tmp_path / "file")
    with pytest.raises(UsageError, match="Choose another folder: --output DIR"):
        export_events(run, Path("/proc/1/nothing"))


def test_csv_of_lists_and_odd_names(tmp_path: Path, allranks: Allranks) -> None:
    run = make_run(tmp_path / "runs", windows=1)
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ODD))
    done = allranks("export", "csv", run.id)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "time,step,fit,train_loss,train_?,nonfinite"
    assert lines[4].endswith(",a b")


def test_one_word_is_a_table_where_no_run_is_called_so(tmp_path: Path, allranks: Allranks) -> None:
    run = make_run(tmp_path / "runs", windows=2)
    assert "cpu" in allranks("export", "csv", "nodes").stdout.splitlines()[0]
    assert "train_loss" in allranks("export", "csv", "train").stdout  # the run of that name
    assert "No run is called 'nodes'" in allranks("export", "csv", "nodes", "train").stderr
    make_run(tmp_path / "runs", "nodes", windows=2)
    assert "train_loss" in allranks("export", "csv", "nodes").stdout
    assert allranks("export", "csv", run.id, "nodes").returncode == 0


@pytest.mark.parametrize("table", TABLES)
def test_csv_holds_the_whole_table(tmp_path: Path, table: str) -> None:
    run = make_run(tmp_path, windows=20, attempts=2)
    text = io.StringIO()
    count = write_csv(run, table, text)
    metrics = Metrics(run.path)
    wanted = list(metrics.rows(table))
    rows = list(csv.DictReader(io.StringIO(text.getvalue())))
    assert len(rows) == len(wanted) == count
    if table != "test":
        assert list(rows[0]) == metrics.names(table)
        assert {name: value for name, value in rows[-1].items() if value} == {
            name: str(value) for name, value in wanted[-1].items() if value != ""
        }
    if table in KINDS and wanted:
        assert float(rows[0]["step"]) == wanted[0]["step"]


def test_csv_by_the_command(tmp_path: Path, allranks: Allranks) -> None:
    make_run(tmp_path / "runs", windows=12)
    done = allranks("export", "csv", "last", "val")
    assert done.stdout.splitlines()[0] == "time,step,epoch,fit,val_loss,val_accuracy"
    assert len(done.stdout.splitlines()) == 2
    assert allranks("export", "csv").stdout == allranks("export", "csv", "last", "train").stdout
    assert "no rows in table test" in allranks("export", "csv", "last", "test").stderr
    wrong = allranks("export", "csv", "last", "trian")
    assert wrong.returncode == 2
    assert "Did you mean 'train'?" in wrong.stderr


def test_the_text_of_some_runs_is_printed(tmp_path: Path, allranks: Allranks) -> None:
    runs = [make_run(tmp_path / "runs", name, windows=2) for name in ("one", "two")]
    done = allranks("export", "prometheus", "one", "two", "--openmetrics")
    assert done.returncode == 0, done.stderr
    steps = read(done.stdout)["allranks_step"].samples
    assert {dict(pairs)["run"] for _, pairs in steps} == {run.id for run in runs}
    assert "allranks_step" in read(allranks("export", "prometheus", "one").stdout, classic=True)


def test_mistakes_are_sentences(tmp_path: Path, allranks: Allranks) -> None:
    make_run(tmp_path / "runs", windows=1)
    for words, told in (
        (("--every", "15s"), "--output FILE.prom"),
        (("--every", "soon", "-o", "x.prom"), "'soon' is not a time"),
        (("--every", "inf", "-o", "x.prom"), "--every inf is not an interval"),
        (("--every", "0.5", "-o", "x.prom"), "less than a second"),
        (("-o", "no/such/x.prom"), "cannot be written"),
    ):
        done = allranks("export", "prometheus", *words)
        assert done.returncode == 2
        assert told in done.stderr
        assert "Traceback" not in done.stderr


def test_looking_ends_with_the_runs(tmp_path: Path) -> None:
    run = make_run(tmp_path, finished=False, windows=5)
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 1:
            grow(run)
        else:
            _finish(run)

    steps = [shown[0].progress.step for shown in poll_runs([run], 15.0, sleep)]
    assert steps == [50, 60, 60]
    assert waited == [15.0, 15.0]


def test_every_task_of_an_array_is_there(tmp_path: Path, allranks: Allranks) -> None:
    make_array(tmp_path, {"0": "finished", "1": "failed"})
    done = allranks("export", "prometheus", str(tmp_path), PATH="/nothing")
    assert done.returncode == 0, done.stderr
    samples = read(done.stdout, classic=True)["allranks_step"].samples
    assert {dict(pairs)["task"]: value for (_, pairs), value in samples.items()} == {
        "0": 10,
        "1": 20,
    }


def test_slurm_may_be_silent_for_minutes_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time counts, not looks; and it says why it ends."""
    monkeypatch.setenv("PATH", str(tmp_path))
    run = make_run(tmp_path, finished=False, windows=2, job_id="4711")
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    seen: list[object] = []
    with pytest.raises(SlurmError, match=f"Slurm has not reported {run.id} for 10 min"):
        seen.extend(poll_runs([run], 100.0, sleep, lambda: now))
    assert len(seen) == 7
    assert len(list(poll_runs([run]))) == 1


def test_the_file_is_kept_fresh_until_ctrl_c(tmp_path: Path, clean_env: dict[str, str]) -> None:
    run = make_run(tmp_path / "runs", finished=False, windows=5)
    out = tmp_path / "train.prom"
    command = [sys.executable, "-m", "allranks", "export", "prometheus", str(run.path)]
    child = subprocess.Popen([*command, "--every", "1s", "--output", str(out)], env=clean_env)
    try:
        until(out.exists)
        assert 'allranks_run_state{run="' in out.read_text()
        grow(run)
        until(lambda: f'allranks_step{{run="{run.id}"}} 60\n' in out.read_text())
        child.send_signal(signal.SIGINT)
        assert child.wait(30) == 130
    finally:
        child.kill()
        child.wait()
    read(out.read_text(), classic=True)
    assert [path.name for path in tmp_path.glob("*.prom*")] == ["train.prom"]
    assert out.stat().st_mode & 0o444 == 0o444  # the collector is another user


def _finish(run: Run) -> None:
    end = {"exit_code": 0, "outcome": "finished", "end": "2026-11-15T12:00:00.000000Z"}
    (run.path / "attempts" / "1" / "end.json").write_text(json.dumps(end))
