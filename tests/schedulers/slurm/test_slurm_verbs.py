"""submit, ps, logs and run inside an allocation, on a real cluster."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from command_rig import Allranks, until

pytestmark = pytest.mark.slurm

HELLO = "import os; print('hello from', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], flush=True)\n"


@pytest.fixture
def hello(tmp_path: Path) -> str:
    (tmp_path / "hello.py").write_text(HELLO)
    return "hello.py"


def test_submit_tells_what_to_type_next(slurm: Allranks, hello: str, tmp_path: Path) -> None:
    done = slurm("submit", "-t", "5m", "--nprocs", "2", hello)
    assert done.returncode == 0, done.stderr
    job_id = done.stdout.split()[2]
    assert f"allranks logs -f {job_id}" in done.stdout
    followed = slurm("logs", "-f", job_id)
    assert sorted(followed.stdout.splitlines()) == [
        "[0] hello from 0 of 2",
        "[1] hello from 1 of 2",
    ]
    (row,) = json.loads(slurm("ps", "--json", job_id).stdout)
    assert (row["state"], row["exit_code"], row["job_id"]) == ("COMPLETED", 0, job_id)
    for reference in (job_id, "hello", "last", row["folder"]):
        assert slurm("logs", "--rank", "1", reference).stdout == "[1] hello from 1 of 2\n"


def test_the_run_folder_holds_everything(slurm: Allranks, hello: str, tmp_path: Path) -> None:
    done = slurm("submit", "-t", "5m", "--json", hello, API_TOKEN="do-not-tell")
    folder = Path(json.loads(done.stdout)["folder"])
    slurm("logs", "-f", "last")
    assert (folder / "code/hello.py").read_text() == HELLO
    assert 'script = "hello.py"' in (folder / "job.toml").read_text()
    assert json.loads((folder / "plan.json").read_text())["shape"]["nodes"] == 1
    assert json.loads((folder / "versions.json").read_text())
    attempt = folder / "attempts/1"
    assert json.loads((attempt / "attempt.json").read_text())["launcher"] == "srun"
    assert json.loads((attempt / "end.json").read_text())["exit_code"] == 0
    environment = (attempt / "environment.txt").read_text()
    assert "API_TOKEN" in environment
    everything = [path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file()]
    assert not any("do-not-tell" in text for text in everything)


def test_the_queued_job_runs_the_code_of_its_submission(
    slurm: Allranks, hello: str, tmp_path: Path
) -> None:
    slurm("submit", "-t", "5m", "--sbatch", "begin=now+3", hello)
    (tmp_path / "hello.py").write_text("print('edited meanwhile')\n")
    assert slurm("logs", "-f", "last").stdout == "[0] hello from 0 of 1\n"


def test_a_waiting_job_says_why(slurm: Allranks, hello: str) -> None:
    slurm("submit", "-t", "5m", "--sbatch", "hold", "-J", "held", hello)
    (row,) = json.loads(slurm("ps", "--json", "held").stdout)
    assert row["state"] == "PENDING"
    assert "held" in row["why"]
    assert slurm("cancel", "held").returncode == 0


def test_a_request_that_does_not_fit_is_refused_before_the_queue(
    slurm: Allranks, hello: str
) -> None:
    done = slurm("submit", "--gpus-per-node", "8", hello)
    assert done.returncode == 2
    assert "Job asks for 8 GPUs per node, but partition 'main' has 4." in done.stderr
    assert "--gpus-per-node 4" in done.stderr
    done = slurm("submit", "--nodes", "3", hello)
    assert done.returncode == 2
    assert "3 nodes" in done.stderr


def test_a_refusal_by_slurm_is_told_in_words(slurm: Allranks, hello: str) -> None:
    done = slurm("submit", "--constraint", "no-such-feature", hello)
    assert done.returncode == 5
    assert "Traceback" not in done.stderr
    assert "feature" in done.stderr.lower()


def test_cpus_and_memory_follow_the_gpus(slurm: Allranks, hello: str) -> None:
    done = slurm("submit", "--dry-run", "--explain", "--gpus-per-node", "a100:2", hello)
    assert done.returncode == 0, done.stderr
    assert "#SBATCH --gpus-per-node=a100:2" in done.stdout
    assert "#SBATCH --cpus-per-task=2" in done.stdout  # half of 8 CPUs, over 2 tasks
    assert "2 of the node's 4 GPUs" in done.stderr
    assert "Nothing was submitted" in done.stderr


def test_gpus_per_task_are_private_to_each_rank(slurm: Allranks, tmp_path: Path) -> None:
    (tmp_path / "devices.py").write_text(
        "import os, allranks\n"
        "w = allranks.world()\n"
        "print(w.rank, w.local_rank, w.device_index, os.environ['CUDA_VISIBLE_DEVICES'])\n"
    )
    size = ["-N", "2", "--tasks-per-node", "2", "-t", "5m"]
    done = slurm("submit", *size, "--gpus-per-task", "1", "--follow", "devices.py")
    assert done.returncode == 0, done.stderr
    rows = sorted(
        line.partition("] ")[2].split() for line in done.stdout.splitlines() if "]" in line
    )
    assert [row[:3] for row in rows] == [
        ["0", "0", "0"],
        ["1", "1", "0"],
        ["2", "0", "0"],
        ["3", "1", "0"],
    ]
    assert [row[3] for row in rows] == ["0", "1", "0", "1"]
    done = slurm("submit", *size, "--gpus-per-node", "2", "--follow", "devices.py")
    rows = sorted(
        line.partition("] ")[2].split() for line in done.stdout.splitlines() if "]" in line
    )
    assert [row[1:] for row in rows] == [["0", "0", "0,1"], ["1", "1", "0,1"]] * 2


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (["-N", "2", "--ntasks-per-node=2"], ["--nprocs", "4"]),
        (["-N", "2", "--gpus-per-node=2"], []),
        (["-N", "2", "--gres=gpu:a100:2"], ["--launcher", "fork"]),
    ],
)
def test_run_spans_the_allocation_around_it(
    asked: list[str], words: list[str], slurm_env: dict[str, str], hello: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "allranks", "run", *words, hello]
    done = subprocess.run(
        ["salloc", *asked, "-t", "5", *command],
        cwd=tmp_path, env=slurm_env, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(line[4:] for line in done.stdout.splitlines() if "hello" in line) == [
        f"hello from {rank} of 4" for rank in range(4)
    ]


def test_run_takes_a_part_of_the_allocation_around_it(
    slurm_env: dict[str, str], hello: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "allranks", "run", "--nodes", "1", "--tasks-per-node", "1"]
    done = subprocess.run(
        ["salloc", "-N2", "--ntasks-per-node=2", "-t", "5", *command, hello],
        cwd=tmp_path, env=slurm_env, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line for line in done.stdout.splitlines() if "hello" in line] == ["hello from 0 of 1"]


def test_a_submit_inside_a_job_inherits_nothing_of_it(slurm: Allranks, tmp_path: Path) -> None:
    (tmp_path / "inner.py").write_text(
        "import os\nprint('inner', os.environ['WORLD_SIZE'], os.environ['SLURM_JOB_NUM_NODES'],"
        " os.environ.get('SLURM_CPUS_PER_TASK'), flush=True)\n"
    )
    (tmp_path / "outer.py").write_text(
        "import os, subprocess, sys\n"
        "words = ['submit', '-t', '5m', '--nprocs', '1', '--cpus-per-task', '3', 'inner.py']\n"
        "if os.environ['RANK'] == '0':\n"
        "    subprocess.run([sys.executable, '-m', 'allranks', *words], check=True)\n"
    )
    size = ["-N", "2", "--nprocs", "2", "--cpus-per-task", "2", "-t", "5m"]
    done = slurm("submit", *size, "--follow", "outer.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert slurm("logs", "-f", "inner").stdout.split() == ["[0]", "inner", "1", "1", "3"]


WAITS_FOR_USR1 = """
import os, signal, sys, time
got = []
signal.signal(signal.SIGUSR1, lambda number, frame: got.append(number))
print("ready", flush=True)
while not got:
    time.sleep(0.1)
time.sleep(2)  # a second delivery would come by now
print("got", len(got), flush=True)
"""


@pytest.mark.parametrize("launcher", ["srun", "fork", "torchrun", "srun --no-agent"])
def test_a_signal_before_the_limit_reaches_every_rank_once(
    launcher: str, slurm: Allranks, slurm_env: dict[str, str], tmp_path: Path
) -> None:
    if "torchrun" in launcher:
        pytest.importorskip("torch")
    (tmp_path / "saves.py").write_text(WAITS_FOR_USR1)
    words = [
        "-N",
        "2",
        "--nprocs",
        "4",
        "-t",
        "5m",
        "--signal",
        "B:USR1@120",
        "-l",
        *launcher.split(),
    ]
    submitted = slurm("submit", *words, "--json", "saves.py")
    job_id = json.loads(submitted.stdout)["job_id"]
    until(lambda: slurm("logs", job_id).stdout.count("ready") == 4)
    subprocess.run(["scancel", "--batch", "--signal=USR1", job_id], env=slurm_env, check=True)
    done = slurm("logs", "-f", job_id)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("got 1") == 4


def test_an_array_ends_with_its_worst_task(slurm: Allranks, tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(
        "import os, sys, time\n"
        "task = int(os.environ['SLURM_ARRAY_TASK_ID'])\n"
        "print('task', task, flush=True)\n"
        "time.sleep(0 if task == 2 else 3)\n"
        "sys.exit(7 if task == 1 else 0)\n"
    )
    submitted = slurm("submit", "-t", "5m", "--array", "0-2", "--json", "tasks.py")
    done = slurm("logs", "-f", "last")
    assert sorted(line for line in done.stdout.splitlines() if "task" in line) == [
        f"[{task}:0] task {task}" for task in range(3)
    ]
    assert done.returncode == 7
    (row,) = json.loads(slurm("ps", "--json", "last").stdout)
    assert (row["state"], row["exit_code"]) == ("FAILED", 7)
    job_id = json.loads(submitted.stdout)["job_id"]
    assert slurm("logs", f"{job_id}_1").stdout == "[1:0] task 1\n"


def test_run_inside_a_step_stays_in_it(
    slurm_env: dict[str, str], hello: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "allranks", "run", "--nprocs", "2", hello]
    done = subprocess.run(
        ["srun", "-N1", "-n1", "-c2", "-t", "5", *command],
        cwd=tmp_path, env=slurm_env, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.split("\n")[:2]) == ["[0] hello from 0 of 2", "[1] hello from 1 of 2"]


def test_a_set_up_that_fails_in_the_task_ends_the_job(slurm: Allranks, hello: str) -> None:
    words = ["--setup-on", "node", "--setup-command", "false"]
    done = slurm("submit", "-t", "5m", *words, "--follow", hello)
    assert done.returncode == 1
    assert "hello from" not in done.stdout
