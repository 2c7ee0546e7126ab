"""The command: where reports go, what it says, what it refuses; and jobs of a real Slurm."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from allranks.cli.report import _slow_notice
from allranks.observe.report.report_files import report_run
from allranks.runs import Run
from command_rig import Allranks, until
from view_rig import make_run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return make_run(tmp_path / "runs", ranks=8, windows=300, slow_rank=5, job_id="4711")


def test_the_page_lies_in_the_run_folder(allranks: Allranks, run: Run) -> None:
    done = allranks("report", "train", COLUMNS="80")
    assert done.returncode == 0, done.stderr
    page = run.path / "report.html"
    assert str(page) in done.stdout
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert "rank 5 on node2" in " ".join(done.stdout.split())
    assert "--cpus-per-task 5" in done.stdout
    assert max(map(len, done.stdout.splitlines()[:-1])) <= 80
    assert allranks("report").stdout == done.stdout  # without a run the last one is meant


def test_it_goes_where_it_is_asked_to(allranks: Allranks, run: Run, tmp_path: Path) -> None:
    assert allranks("report", "train", "-o", "-").stdout.startswith("<!DOCTYPE html>")
    assert allranks("report", "train", "--format", "markdown", "-o", "-").stdout.startswith(
        "# train"
    )
    assert allranks("report", "train", "-o", "note.md").returncode == 0
    assert (tmp_path / "note.md").read_text().startswith("# train: completed")
    assert json.loads(allranks("report", "train", "--json").stdout)["name"] == "train"
    assert allranks("report", "train", "--json", "-o", ".").returncode == 0
    assert json.loads((tmp_path / "report.json").read_text())["format"] == 1
    assert not (run.path / "report.html").exists()


def test_a_folder_that_may_not_be_written_gets_none(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = report_run(run)
    assert report.default_path() == run.path / "report.html"
    monkeypatch.setattr("allranks.observe.report.report_files.os.access", lambda *_: False)
    assert report.default_path() == Path(f"report-{run.id}.html").absolute()


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["trian"], 2, "No run is called 'trian'. Did you mean train?"),
        (["train", "--job", "12"], 2, "Give either a run ('train') or --job 12."),
        (["train", "--json", "--format", "html"], 2, "--json and --format html contradict"),
        (["--job", "x12"], 2, "'x12' is not a Slurm job id."),
        (["train", "-o", "no/such/folder/x.html"], 2, "cannot be written to no/such/folder/x.html"),
    ],
)
def test_mistakes_are_told(
    allranks: Allranks, run: Run, words: list[str], code: int, message: str
) -> None:
    done = allranks("report", *words)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_the_job_of_a_run_gives_the_report_of_the_run(allranks: Allranks, run: Run) -> None:
    # No Slurm answers here; the folder knows its job.
    done = allranks("report", "--job", "4711")
    assert done.returncode == 0, done.stderr
    assert (run.path / "report.html").exists()


def test_it_says_what_it_waits_for(capsys: pytest.CaptureFixture[str]) -> None:
    with _slow_notice(0.01):
        until(lambda: "querying Slurm" in capsys.readouterr().err)
    with _slow_notice(60):
        pass
    assert capsys.readouterr().err == ""


@pytest.mark.slurm
def test_a_job_of_others_without_accounting(
    slurm: Allranks, slurm_env: dict[str, str], tmp_path: Path
) -> None:
    """What it asked for is known as long as Slurm remembers it; what it used is not, and it says so."""
    command = [
        "sbatch",
        "--parsable",
        "-N2",
        "--gpus-per-node=a100:1",
        "--mem=100M",
        "--wrap",
        "exit 3",
    ]
    job = subprocess.run(
        command, env=slurm_env, cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout.strip()
    until(
        lambda: "failed" in slurm("report", "--job", job, "--format", "markdown", "-o", "-").stdout
    )
    done = slurm("report", "--job", job)
    assert done.returncode == 0, done.stderr
    assert "It failed" in done.stdout
    assert (tmp_path / f"report-{job}.html").exists()
    found = json.loads(slurm("report", "--job", job, "--json").stdout)
    assert (found["state"], found["exit_code"]) == ("failed", 3)
    assert (found["requested"]["nodes"], found["requested"]["gpu_type"]) == (2, "a100")
    assert any("no accounting" in each for each in found["limitations"])
    unknown = slurm("report", "--job", "999999")
    assert unknown.returncode == 2
    assert "Slurm does not know the job 999999" in unknown.stderr


@pytest.mark.slurm
def test_a_run_on_slurm(slurm: Allranks, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import time; time.sleep(1)\n")
    submitted = slurm(
        "submit", "--follow", "--nodes", "2", "--gpus-per-node", "2", "--time", "5m", "train.py"
    )
    assert submitted.returncode == 0, submitted.stderr
    found = json.loads(slurm("report", "last", "--json").stdout)
    assert (found["kind"], found["state"], found["launcher"] != "") == ("run", "completed", True)
    assert (found["requested"]["nodes"], found["requested"]["ranks"]) == (2, 4)
    assert found["requested"]["time_limit"] == 300
    assert found["hosts"] == ["node[1-2]"]
    by_job = slurm("report", "--job", found["job_ids"][0], "--json")
    assert json.loads(by_job.stdout)["id"] == found["id"]


@pytest.mark.slurm
def test_an_array_on_slurm(slurm: Allranks, tmp_path: Path) -> None:
    """Task 1 fails: its report is asked for by its number, and that of the other tells of it."""
    text = "import os, sys; sys.exit(3 * int(os.environ['SLURM_ARRAY_TASK_ID']))\n"
    (tmp_path / "task.py").write_text(text)
    slurm("submit", "--follow", "--array", "0-1", "--nprocs", "1", "--time", "5m", "task.py")
    states = {"0": "completed", "1": "failed"}
    for task, state in states.items():
        found = json.loads(slurm("report", "last", "--task", task, "--json").stdout)
        assert (found["task"], found["state"], found["tasks"]) == (task, state, states)
    job = found["job_ids"][0]
    done = slurm("report", f"{job}_0")
    assert "failed: 1. Of another: allranks report task-" in " ".join(done.stdout.split())
    assert list(tmp_path.glob("runs/task-*/tasks/0/report.html"))
