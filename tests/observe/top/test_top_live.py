"""The command: one picture, JSON, a mistake; and a real training watched while it trains."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from command_rig import Allranks
from terminal_rig import Terminal
from view_rig import make_array, make_run

SCRIPT = Path(__file__).with_name("watch_train.py")


def test_one_picture_where_there_is_no_terminal(tmp_path: Path, allranks: Allranks) -> None:
    run = make_run(tmp_path / "runs", ranks=40, slow_rank=33)
    for words in (("top", "last"), ("top", "--once", run.id)):
        done = allranks(*words)
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        assert lines[0].startswith(f"{run.id}  completed")
        assert sum("straggler +" in line for line in lines) == 1
        assert "  39  " in done.stdout  # every row, whatever the height
        assert "COMPUTE" in done.stdout
        assert max(map(len, lines)) <= 120
        assert "\x1b" not in done.stdout
        assert "q quit" not in done.stdout


def test_a_picture_as_wide_as_asked_for(tmp_path: Path, allranks: Allranks) -> None:
    make_run(tmp_path / "runs")
    done = allranks("top", "--once", COLUMNS="70")
    assert max(map(len, done.stdout.splitlines())) <= 70


def test_a_task_of_an_array(tmp_path: Path, allranks: Allranks) -> None:
    folder = tmp_path / "runs" / "sweep-20261115-100000"
    folder.mkdir(parents=True)
    make_array(folder, {"0": "finished", "1": "failed"})
    for words in (("4711_0",), ("sweep", "--task", "0")):
        done = allranks("top", "--json", *words, PATH="/nothing")
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        assert (told["task"], told["status"]["state"], told["progress"]["step"]) == (
            "0", "COMPLETED", 10,
        )  # fmt: skip
    newest = allranks("top", "4711", PATH="/nothing").stdout.splitlines()
    assert newest[0].startswith(f"{folder.name}  task 1  failed")
    waits = allranks("top", "4711_7", PATH="/nothing").stdout.splitlines()
    assert waits[0].startswith(f"{folder.name}  task 7  ")
    wrong = allranks("top", "4711_10", PATH="/nothing")
    assert wrong.returncode == 2
    assert f"{folder.name} has no task 10. It has 0-9." in wrong.stderr
    make_run(tmp_path / "runs")
    assert "is no job array" in allranks("top", "train", "--task", "0").stderr


@pytest.mark.parametrize("seconds", ["nan", "inf", "1e12", "0", "soon"])
def test_times_that_nobody_can_wait_for(tmp_path: Path, allranks: Allranks, seconds: str) -> None:
    make_run(tmp_path / "runs", windows=2)
    done = allranks("top", "--every", seconds)
    assert done.returncode == 2
    assert "Invalid value for '--every'" in done.stderr
    assert "Traceback" not in done.stderr


def test_ascii_for_an_output_that_knows_no_blocks(tmp_path: Path, allranks: Allranks) -> None:
    make_run(tmp_path / "runs", "größe")
    done = allranks("top", "last", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert "gr??e-" in done.stdout
    assert "####" in done.stdout


def test_json_is_one_look(tmp_path: Path, allranks: Allranks) -> None:
    run = make_run(tmp_path / "runs")
    done = allranks("top", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert run.id in json.dumps(told)
    assert told["progress"]["step"] == 500


def test_an_unknown_run(tmp_path: Path, allranks: Allranks) -> None:
    make_run(tmp_path / "runs")
    done = allranks("top", "trian")
    assert done.returncode == 2
    assert "Error: No run is called 'trian'. Did you mean train?" in done.stderr
    assert not done.stdout


@pytest.mark.torch
@pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")
def test_a_training_is_watched_while_it_trains(tmp_path: Path, clean_env: dict[str, str]) -> None:
    env = {**clean_env, "ALLRANKS_SAMPLE": "1"}
    command = f"{sys.executable} -m allranks run --nprocs 2 {SCRIPT} 4 >log 2>&1 &"
    with Terminal(tmp_path, env) as terminal:
        terminal.type(command)
        terminal.wait(lambda _: any(tmp_path.glob("runs/*/attempts/1")))
        terminal.top("last", "--every 0.3")
        terminal.shows("running", "step ", "/64", "epoch ", "loss ", "samples/s", "to go")
        terminal.shows("NODE", "CPU")
        terminal.press("r")
        terminal.shows("RANK", "WAIT", "straggler +")
        terminal.shows("completed at", "100%", "the training is over")
        terminal.press("q")
        terminal.wait(lambda text: "q quit" not in text)
