"""Loggers that need no package: the two files, the fan-out, and making them by name."""

from __future__ import annotations

import csv
import errno
import importlib.util
import json
import math
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from allranks.errors import MissingDependencyError, UsageError
from allranks.train.loggers import (
    CsvLogger,
    JsonlLogger,
    Logger,
    Loggers,
    RunInfo,
    make_loggers,
)
from allranks.train.loggers.line_file import LineFile
from allranks.train.loggers.logger_registry import flat
from command_rig import until


def run_in(folder: Path, resumed: bool = False, **hyperparams: Any) -> RunInfo:
    return RunInfo(folder, "net", hyperparams, resumed, 2)


def lines_of(folder: Path) -> list[dict[str, Any]]:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    text = (folder / "metrics.jsonl").read_text()
    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def test_jsonl_writes_one_object_per_line(tmp_path: Path) -> None:
    logger = JsonlLogger()
    logger.start(run_in(tmp_path))
    logger.log({"train_loss": 0.5}, step=1, epoch=1, kind="train")
    logger.log({"val_loss": 0.25}, step=1, epoch=1, kind="val")
    logger.close("finished")
    first, second = lines_of(tmp_path)
    assert list(first) == ["time", "step", "epoch", "fit", "kind", "train_loss"]
    assert (second["kind"], second["val_loss"]) == ("val", 0.25)
    assert second["time"] >= first["time"] > 1e9


def test_jsonl_writes_validation_at_once_and_steps_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("allranks.train.loggers.line_file.FLUSH_SECONDS", 600.0)
    logger = JsonlLogger()
    logger.start(run_in(tmp_path))
    for step in range(1, 64):
        logger.log({"x": 1.0}, step=step, epoch=1, kind="train")
    assert lines_of(tmp_path) == []
    logger.log({"x": 1.0}, step=64, epoch=1, kind="train")
    assert len(lines_of(tmp_path)) == 64
    logger.log({"x": 1.0}, step=65, epoch=1, kind="epoch")
    assert len(lines_of(tmp_path)) == 65
    logger.close("finished")


@pytest.mark.parametrize("kind", [JsonlLogger, CsvLogger])
def test_a_line_that_no_other_follows_is_written_all_the_same(
    kind: type[Logger], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The training hangs after it, and somebody looks at what it did last."""
    monkeypatch.setattr("allranks.train.loggers.line_file.FLUSH_SECONDS", 0.05)
    logger = kind()
    logger.start(run_in(tmp_path))
    for step in (1, 2, 3):
        logger.log({"x": 1.0}, step=step, epoch=1, kind="train")
    (path,) = tmp_path.glob("metrics.*")
    until(lambda: path.read_text().count("1.0") == 3, 20)
    thread = logger._file._thread  # type: ignore[attr-defined]
    assert thread.is_alive()
    logger.close("failed")
    thread.join(20)
    assert not thread.is_alive()


def test_lines_of_a_full_disk_wait_for_room_without_another_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("allranks.train.loggers.line_file.FLUSH_SECONDS", 0.02)
    out = LineFile(tmp_path / "lines")
    disk = out._file = FullDisk(out.open(), room=3)  # type: ignore[assignment]
    out.add("first\n")
    until(lambda: disk.room == 0, 20)
    disk.room = 100
    until(lambda: (tmp_path / "lines").read_text() == "first\n", 20)
    out.close()


@pytest.mark.parametrize("written", ["jsonl", "csv"])
def test_a_full_disk_is_told_though_a_thread_meets_it_first(written: str, tmp_path: Path) -> None:
    """In a process of its own, whose files may have no more than 300 bytes."""
    script = f"""
import resource, signal, sys, time
from pathlib import Path
from allranks.train.loggers import Loggers, RunInfo, make_loggers
from allranks.train.loggers import line_file as lines

lines.FLUSH_SECONDS = 0.01
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
(logger,) = [each for each in make_loggers(["csv"]) if each.name == {written!r}]
told = []
loggers = Loggers([logger], warn=told.append)
loggers.start(RunInfo(Path(sys.argv[1]), "net", {{}}, False, 1))
resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))
for step in range(2000):
    loggers.log({{"x": 0.5}}, step=step, epoch=1, kind="train")
    time.sleep(0.02)
    if told:
        break
print(told)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=100
    )
    assert f"The {written} logger failed: OSError: [Errno 27]" in done.stdout, done.stderr


def test_a_logger_that_is_left_out_writes_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next training of the script writes to the same file."""
    monkeypatch.setattr("allranks.train.loggers.line_file.FLUSH_SECONDS", 0.02)
    logger, told = CsvLogger(), []
    loggers = Loggers([logger], warn=told.append)
    loggers.start(run_in(tmp_path))
    loggers.log({"x": 1.0}, step=1, epoch=1, kind="val")
    disk = FullDisk(logger._file._file, room=0)
    logger._file._file = disk
    loggers.log({"x": 2.0}, step=2, epoch=1, kind="train")
    thread = logger._file._thread
    assert thread is not None
    with pytest.raises(OSError, match="No space left"):
        logger._file.flush()
    loggers.log({"x": 3.0}, step=3, epoch=1, kind="val")
    thread.join(20)
    until(lambda: disk.file.closed, 20)
    assert len(told) == 1
    assert not thread.is_alive()
    disk.room = 100
    logger._file.flush()
    assert [row["step"] for row in csv.DictReader((tmp_path / "metrics.csv").open())] == ["1"]


def test_csv_goes_on_with_a_file_that_has_no_fit(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("time,step,epoch,kind,x\n1.0,1,1,val,0.5\n")
    logger = CsvLogger()
    logger.start(run_in(tmp_path, resumed=True))
    logger.log({"x": 0.25, "fit": 0.93}, step=2, epoch=1, kind="val")
    logger.close("finished")
    rows = list(csv.DictReader(path.open()))
    assert [(row["x"], row["fit"]) for row in rows] == [("0.5", ""), ("0.25", "1")]


def test_jsonl_has_null_for_what_is_no_number(tmp_path: Path) -> None:
    logger = JsonlLogger()
    logger.start(run_in(tmp_path))
    values = {"a": math.nan, "b": -math.inf, "c": 1.0}
    logger.log(values, step=1, epoch=1, kind="epoch")
    logger.close("failed")
    (line,) = lines_of(tmp_path)
    assert (line["a"], line["b"], line["c"]) == (None, None, 1.0)
    assert line["nonfinite"] == ["a", "b"]


def test_jsonl_takes_numbers_of_other_libraries_and_keeps_its_own_names(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    logger = JsonlLogger()
    logger.start(run_in(tmp_path))
    values = {"a": numpy.float32(0.5), "b": numpy.float32("nan"), "step": 99, "fit": 0.93}
    logger.log(values, step=1, epoch=1, kind="val")
    logger.close("finished")
    (line,) = lines_of(tmp_path)
    assert (line["a"], line["b"], line["step"], line["fit"]) == (0.5, None, 1, 1)


def test_jsonl_goes_on_after_a_kill_within_a_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"st')
    logger = JsonlLogger()
    logger.start(run_in(tmp_path, resumed=True))
    logger.log({}, step=2, epoch=1, kind="val")
    logger.close("finished")
    lines = path.read_text().splitlines()
    assert lines[:2] == ['{"step": 1}', '{"st']
    assert json.loads(lines[2])["step"] == 2


class FullDisk:
    """Takes a few bytes, then none, until it is given room."""

    def __init__(self, file: Any, room: int) -> None:
        self.file, self.room = file, room

    def write(self, data: bytes) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        part = data[: self.room]
        self.room -= len(part)
        return int(self.file.write(part))

    def close(self) -> None:
        self.file.close()


def test_jsonl_loses_nothing_when_the_disk_was_full_for_a_while(tmp_path: Path) -> None:
    logger, told = JsonlLogger(), []
    loggers = Loggers([logger], warn=told.append)
    loggers.start(run_in(tmp_path))
    disk = FullDisk(logger._file._file, room=10)
    logger._file._file = disk
    for step in (1, 2, 3):
        loggers.log({"x": 1.0}, step=step, epoch=1, kind="val")
    assert len(told) == 1
    assert "jsonl" in told[0]
    assert "No space left" in told[0]
    assert "keeps trying" in told[0]
    disk.room = 10**6
    loggers.log({"x": 1.0}, step=4, epoch=1, kind="val")
    loggers.close("finished")
    assert [line["step"] for line in lines_of(tmp_path)] == [1, 2, 3, 4]


def test_csv_grows_columns_and_goes_on_after_a_resume(tmp_path: Path) -> None:
    logger = CsvLogger()
    logger.start(run_in(tmp_path))
    logger.log({"train_loss": 0.5}, step=1, epoch=1, kind="train")
    logger.log({"val_loss": math.nan, "comma, quote": 1.0}, step=2, epoch=1, kind="val")
    logger.close("stopped")
    again = CsvLogger()
    again.start(run_in(tmp_path, resumed=True))
    again.log({"train_loss": 0.25, "lr": 0.1}, step=3, epoch=2, kind="train")
    again.close("finished")
    with open(tmp_path / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    names = ["time", "step", "epoch", "kind", "fit", "train_loss", "val_loss", "comma, quote", "lr"]
    assert list(rows[0]) == names
    assert [row["step"] for row in rows] == ["1", "2", "3"]
    assert [row["train_loss"] for row in rows] == ["0.5", "", "0.25"]
    assert rows[1]["val_loss"] == "nan"
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.csv"]


@pytest.mark.parametrize("kind", [JsonlLogger, CsvLogger])
def test_what_was_lost_leaves_the_file_before_it_goes_on(tmp_path: Path, kind: Any) -> None:
    """Two lines after the checkpoint, the second torn: they are kept apart, and the file goes on."""
    first, attempt = kind(), tmp_path / "attempts" / "1"
    attempt.mkdir(parents=True)
    first.start(run_in(tmp_path))
    first.log({"a": 0.111}, step=1, epoch=1, kind="val")
    loggers = Loggers([first])
    at = loggers.positions()
    first.log({"a": 0.222, "b": 1.0}, step=2, epoch=1, kind="val")  # CSV writes its file anew here
    first.close("failed")
    path = tmp_path / f"metrics.{'csv' if kind is CsvLogger else 'jsonl'}"
    with open(path, "a") as file:
        file.write('{"torn')
    again = kind()
    again.start(replace(run_in(tmp_path, resumed=True), step=1, logged=at, undone=attempt))
    again.log({"a": 0.333}, step=2, epoch=1, kind="val")
    again.close("finished")
    kept = path.read_text()
    assert "torn" not in kept
    assert [("0.111" in line, "0.333" in line) for line in kept.splitlines()[-2:]] == [
        (True, False), (False, True),
    ]  # fmt: skip
    lost = (attempt / f"undone-{path.name}").read_text()
    assert "0.222" in lost
    assert "torn" in lost


class Failing(Logger):
    name = "failing"

    def __init__(self, at: str = "log") -> None:
        self.at, self.calls = at, []

    def _note(self, call: str) -> None:
        self.calls.append(call)
        if call == self.at:
            raise ConnectionError("server gone")

    def start(self, run: RunInfo) -> None:
        self._note("start")

    def log(self, values: Mapping[str, float], *, step: int, epoch: int, kind: str) -> None:
        self._note("log")

    def close(self, status: str) -> None:
        self._note("close")


@pytest.mark.parametrize(
    ("at", "calls"),
    [
        ("start", ["start", "close"]),
        ("log", ["start", "log", "close"]),
        ("close", ["start", "log", "log", "close"]),
    ],
)
def test_a_failing_logger_is_told_once_and_closed_and_left_out(
    tmp_path: Path, at: str, calls: list[str]
) -> None:
    failing, good = Failing(at), Failing("never")
    told: list[str] = []
    loggers = Loggers([failing, good], told.append)
    loggers.start(run_in(tmp_path))
    for step in (1, 2):
        loggers.log({}, step=step, epoch=1, kind="train")
    loggers.close("finished")
    assert len(told) == 1
    assert told[0].startswith("The failing logger failed: ConnectionError: server gone.")
    until(lambda: failing.calls == calls, 20)
    assert good.calls == ["start", "log", "log", "close"]


def test_a_failure_is_a_warning_unless_told_otherwise() -> None:
    loggers = Loggers([Failing()])
    with pytest.warns(UserWarning, match="not used any more"):
        loggers.log({}, step=1, epoch=1, kind="train")


def test_each_logger_of_the_fan_out_is_guarded(tmp_path: Path) -> None:
    class NoFigures(Failing):
        def figure(self, name: str, figure: Any, *, step: int) -> None:
            raise ValueError("cannot draw")

    told: list[str] = []
    loggers = Loggers([NoFigures("never")], told.append)
    for each in loggers:
        each.figure("a", None, step=1)
    assert len(loggers) == 1
    assert "cannot draw" in told[0]


def test_jsonl_is_always_there_and_once() -> None:
    assert [type(each) for each in make_loggers(())] == [JsonlLogger]
    own = Failing()
    made = make_loggers(["csv", own, "jsonl", "CSV"])
    assert [type(each) for each in made] == [JsonlLogger, CsvLogger, Failing]
    assert made[2] is own
    mine = JsonlLogger()
    assert make_loggers([mine]) == [mine]


def test_an_unknown_logger_is_named_with_the_one_meant() -> None:
    with pytest.raises(UsageError, match="Did you mean 'tensorboard'"):
        make_loggers(["tensorbord"])
    with pytest.raises(UsageError, match="CsvLogger"):
        make_loggers([CsvLogger])  # type: ignore[list-item]


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_a_missing_package_is_named_with_what_to_type(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None)
    expected = f"The {name} logger needs the '{name}' package. Install it with: pip install {name}"
    with pytest.raises(MissingDependencyError) as caught:
        make_loggers([name])
    assert str(caught.value) == expected


def test_nested_hyperparameters_become_flat() -> None:
    assert flat({"a": 1, "b": {"c": 2, "d": {"e": 3}}}) == {"a": 1, "b.c": 2, "b.d.e": 3}
