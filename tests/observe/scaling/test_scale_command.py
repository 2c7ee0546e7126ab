"""allranks scale itself: real studies on this machine, broken off and gone on with."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from command_rig import Allranks, until
from scaling_rig import add_point, make_study

TRAINER = """
import torch
from torch.utils.data import DataLoader, TensorDataset
from allranks import TrainConfig, Trainer

torch.set_num_threads(1)
model = torch.nn.Linear(4, 1)
data = TensorDataset(torch.randn(256, 4), torch.randn(256, 1))
trainer = Trainer(
    model, torch.optim.SGD(model.parameters(), lr=0.01),
    TrainConfig(epochs=2, loggers=("csv",), checkpoint_every_steps=2),
)
trainer.fit(DataLoader(data, batch_size=16), DataLoader(data, batch_size=16))
print(trainer.metrics["val_loss"])
"""

PLAIN = """
import json, os, sys, time

ranks, batch = int(os.environ["WORLD_SIZE"]), int(sys.argv[1])
study = json.loads(os.environ["ALLRANKS_STUDY"])
if os.path.exists("hang") and ranks == 2:
    open("hanging", "w").close()
    time.sleep(60)
for step in range(study["steps"]):
    if os.environ["RANK"] == "0":
        print(f"speed {1 if step == 0 else batch * ranks * 100}")
"""
METRIC = ("--metric", r"speed ([\d.]+)")


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    path = tmp_path / "plain.py"
    path.write_text(PLAIN)
    return path


def _result(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)
    return found


def test_a_trainer_script_needs_nothing(tmp_path: Path, allranks: Allranks) -> None:
    (tmp_path / "train.py").write_text(TRAINER)
    done = allranks("scale", "--procs", "2,1", "--steps", "20", "--strong", "--json", "train.py")
    assert done.returncode == 0, done.stderr
    result = _result(done.stdout)
    first, second = result["points"]
    assert (result["kind"], result["unit"]) == ("strong", "samples")
    assert (first["batch"], second["batch"]) == (16, 16)
    assert first["samples_per_second"] > 0
    assert second["efficiency"] == pytest.approx(second["speedup"] / 2)
    run = Path(second["runs"][0])
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert max(line["step"] for line in lines) == 20
    assert sum(line["kind"] == "train" for line in lines) >= 5
    assert not list(run.glob("checkpoints/step-*"))
    assert not (run / "metrics.csv").exists()
    listed = allranks("ps", "--json").stdout
    assert {row["name"] for row in json.loads(listed)} == {"train-1proc", "train-2procs"}


def test_another_script_is_measured_by_what_it_prints(plain: Path, allranks: Allranks) -> None:
    done = allranks("scale", "--procs", "1,2,3", "--steps", "10", *METRIC, plain.name, "{share:8}")
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "plain: strong scaling over processes"
    rows = {line.split()[0].rstrip("*"): line for line in lines[3:6]}
    assert rows["1"].split()[1:4] == ["800", "1.00", "1.00"]
    assert rows["2"].split()[1:4] == ["800", "1.00", "0.50"]
    assert "{share:8}: 8 cannot be divided by 3 ranks" in rows["3"]
    assert "allranks scale --resume plain-" in done.stderr


def test_repetitions_are_runs_of_their_own(plain: Path, tmp_path: Path, allranks: Allranks) -> None:
    done = allranks("scale", "--procs", "1-2", "--repeat", "2", *METRIC, plain.name, "{times:1}")
    assert done.returncode == 0, done.stderr
    assert "weak scaling" in done.stdout
    names = sorted(path.name.rsplit("-", 2)[0] for path in (tmp_path / "runs").glob("plain-*"))
    assert names == ["plain-1proc-1", "plain-1proc-2", "plain-2procs-1", "plain-2procs-2"]
    (folder,) = (tmp_path / "runs/studies").iterdir()
    (folder / "result.json").unlink()
    (folder / "result.json").mkdir()  # in nobody's power to write, as a folder of somebody else
    shown = allranks("scale", "--show", "plain")
    assert shown.stdout == done.stdout
    assert "The results cannot be written" in shown.stderr
    assert "Traceback" not in shown.stderr


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_study_that_was_broken_off_goes_on(
    number: int, plain: Path, tmp_path: Path, allranks: Allranks, clean_env: dict[str, str]
) -> None:
    (tmp_path / "hang").touch()
    words = ["scale", "--procs", "1,2", "--steps", "10", *METRIC, plain.name, "4"]
    started = subprocess.Popen(
        [sys.executable, "-m", "allranks", *words],
        cwd=tmp_path, env=clean_env, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    until(lambda: (tmp_path / "hanging").exists())
    if number == signal.SIGINT:
        second = allranks("scale", "--resume", "last")
        assert second.returncode == 2
        assert f"is in use by process {started.pid}" in second.stderr
    os.kill(started.pid, number)
    told = started.communicate(timeout=30)[1]
    if number == signal.SIGINT:
        assert started.returncode == 130
        assert "allranks scale --resume plain-" in told
    first = list((tmp_path / "runs").glob("plain-1proc-*"))
    (tmp_path / "hang").unlink()
    done = allranks("scale", "--resume", "last", "--json")
    assert done.returncode == 0, done.stderr
    assert [point["state"] for point in _result(done.stdout)["points"]] == ["done", "done"]
    assert list((tmp_path / "runs").glob("plain-1proc-*")) == first
    assert len(list((tmp_path / "runs").glob("plain-2procs-*"))) == 2


def test_a_failure_is_told_in_the_table(tmp_path: Path, allranks: Allranks) -> None:
    (tmp_path / "bad.py").write_text(
        "import os\nif os.environ['WORLD_SIZE'] == '2':\n    raise ValueError('no luck')\n"
    )
    done = allranks("scale", "--procs", "1,2", "--strong", "bad.py")
    assert done.returncode == 1
    assert "ValueError: no luck" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_a_job_file_for_the_cluster_does_not_disturb_a_study_here(
    plain: Path, tmp_path: Path, allranks: Allranks
) -> None:
    (tmp_path / "allranks.toml").write_text("nodes = 4\ngpus_per_node = 4\nrequeue = true\n")
    done = allranks("scale", "--procs", "1,2", "--json", *METRIC, plain.name, "4")
    assert done.returncode == 0, done.stderr
    points = _result(done.stdout)["points"]
    assert [(point["nodes"], point["ranks"]) for point in points] == [(1, 1), (1, 2)]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--procs", "2", "plain.py"], "--procs 1,2"),
        (["--procs", "1,2", "none.py"], "There is no script none.py"),
        (["--procs", "1,2", "--no-wait", "plain.py"], "--no-wait is for jobs of Slurm"),
        (["--show", "nobody"], "No study is called 'nobody'"),
        (["--procs", "1,2", "--metric", "x", "plain.py"], "it needs one"),
        (["--procs", "1,2", "--strong", "--array", "0-3", "plain.py"], "job array"),
        (["--show", "last", "plain.py"], "take no script"),
        (["--procs", "1,2", "plain.py"], "Say --strong"),
    ],
)
def test_mistakes_are_told_before_anything_is_made(
    words: list[str], told: str, plain: Path, tmp_path: Path, allranks: Allranks
) -> None:
    done = allranks("scale", *words)
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_study_elsewhere_is_named_so_that_it_is_found(
    plain: Path, tmp_path: Path, allranks: Allranks
) -> None:
    words = ["--procs", "1,2", "--steps", "10", *METRIC, plain.name, "4"]
    done = allranks("scale", "--runs", "my runs", *words)
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("show")]
    _, _, name = line.partition("--show ")
    assert shlex.split(name) == [str(*(tmp_path / "my runs/studies").iterdir())]
    (tmp_path / "allranks.toml").write_text('runs = "my runs"\n')
    shown = allranks("scale", "--show", "last")
    assert shown.stdout == done.stdout
    assert "show   allranks scale --show plain-" in shown.stderr


def test_the_table_is_as_wide_as_the_terminal(
    plain: Path, tmp_path: Path, allranks: Allranks, clean_env: dict[str, str]
) -> None:
    words = ["--procs", "1,2,3", "--steps", "10", *METRIC, plain.name, "{share:8}"]
    written = allranks("scale", *words).stdout
    assert max(map(len, written.splitlines())) > 60
    spawn = f"import pty; pty.spawn([{sys.executable!r}, *'-m allranks scale --show last'.split()])"
    shown = subprocess.run(
        [sys.executable, "-c", spawn], cwd=tmp_path, env={**clean_env, "COLUMNS": "60"},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=True,
    ).stdout.partition("page ")[0]  # fmt: skip
    assert "8 cannot be divided by 3 ranks" in " ".join(shown.split())
    assert max(map(len, shown.splitlines())) <= 60


@pytest.mark.slurm
def test_nodes_are_jobs_of_slurm(plain: Path, tmp_path: Path, slurm: Allranks) -> None:
    words = ["--nodes", "1,2", "--tasks-per-node", "1", "--time", "2m", "--steps", "10"]
    done = slurm("scale", *words, "--one-by-one", *METRIC, plain.name, "{share:8}")
    assert done.returncode == 0, done.stderr
    assert "strong scaling over nodes" in done.stdout
    first, second = sorted((tmp_path / "runs").glob("plain-*"))
    jobs = [json.loads((path / "run.json").read_text())["job_ids"][0] for path in (first, second)]
    assert f"afterany:{jobs[0]}" in (second / "job.sh").read_text()
    assert "same time" not in done.stdout
    again = slurm("scale", "--show", "last", "--json")
    assert [point["nodes"] for point in _result(again.stdout)["points"]] == [1, 2]


@pytest.mark.slurm
def test_an_allocation_holds_steps_that_are_smaller_than_it(
    tmp_path: Path, slurm_env: dict[str, str]
) -> None:
    (tmp_path / "rest.py").write_text("import time\ntime.sleep(1.5)\n")
    scale = ["scale", "--nodes", "1,2", "--strong", "--json", "rest.py"]
    done = subprocess.run(
        ["salloc", "-N2", "--ntasks-per-node=1", "-c1", sys.executable, "-m", "allranks", *scale],
        cwd=tmp_path, env=slurm_env, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    result = _result(done.stdout)
    assert [point["seconds"] >= 1.5 for point in result["points"]] == [True, True]
    for point in result["points"]:
        end = json.loads(Path(point["runs"][0], "attempts/1/end.json").read_text())["end"]
        assert re.fullmatch(r"[-\d]+T[:\d]+\.\d{6}Z", end)


@pytest.mark.parametrize("fault", ["bogus = 3", "runs = true", "not toml"])
def test_a_faulty_job_file_hides_no_folder(fault: str, allranks: Allranks, tmp_path: Path) -> None:
    study = make_study(tmp_path / "runs", where="local", kind="strong")
    add_point(study, 1, rate=10)
    (tmp_path / "allranks.toml").write_text(f"{fault}\n")
    done = allranks("scale", "--show", str(study.path))
    assert done.returncode == 0, done.stderr
    assert f"allranks scale --show {study.path}" in done.stderr
    refused = allranks("scale", "--show", "train")
    assert refused.returncode == 2
    assert "Traceback" not in refused.stderr
