"""allranks run on this machine: every launcher, the ends, and nothing left behind."""

from __future__ import annotations

import importlib.util
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from command_rig import Allranks, reports, until

# On two nodes tests/schedulers/slurm runs all of them; deepspeed: tests/frameworks.
LAUNCHERS = ["fork", "srun", "torchrun"] + [
    pytest.param(name, marks=pytest.mark.slow) for name in ("launch", "accelerate", "mpirun")
]


@pytest.mark.torch
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_two_ranks_here(launcher: str, allranks: Allranks, report_script: Path) -> None:
    if launcher in ("accelerate", "deepspeed") and importlib.util.find_spec(launcher) is None:
        pytest.skip(f"{launcher} is not installed")
    if launcher == "mpirun" and not shutil.which("mpirun"):
        pytest.skip("there is no mpirun")
    done = allranks("run", "--nprocs", "2", "-l", launcher, "report.py", "--word", "$(x) 'y'")
    assert done.returncode == 0, done.stdout + done.stderr
    found = reports(done.stdout)
    assert [each["sum"] for each in found] == [3.0, 3.0]
    assert [each["LOCAL_RANK"] for each in found] == ["0", "1"]
    assert {each["word"] for each in found} == {"$(x) 'y'"}
    assert {each["LOCAL_WORLD_SIZE"] for each in found} == {"2"}
    assert {each["NODE_RANK"] for each in found} == {"0"}


@pytest.mark.parametrize("mode", ["fork", "srun"])
def test_the_first_error_comes_last_and_its_code_survives(
    mode: str, allranks: Allranks, tmp_path: Path
) -> None:
    (tmp_path / "dies.py").write_text(
        "import os, sys, time\n"
        "if os.environ['RANK'] == '1':\n    sys.exit('no data in /scratch')\n"
        "time.sleep(600)\n"
    )
    done = allranks("run", "--nprocs", "3", "-l", mode, "dies.py", timeout=60)
    assert done.returncode == 1
    said = done.stderr[done.stderr.rindex("first error:") :]
    assert "rank 1" in said
    assert "no data in /scratch" in said
    assert "Traceback" not in done.stderr
    (row,) = __import__("json").loads(allranks("ps", "--json", "last").stdout)
    assert (row["state"], row["exit_code"]) == ("FAILED", 1)


def test_the_python_launcher_leaves_the_ranks_to_the_script(
    allranks: Allranks, tmp_path: Path
) -> None:
    (tmp_path / "spawns.py").write_text(
        "import os\nprint('rank' if 'RANK' in os.environ else 'no rank set', flush=True)\n"
    )
    done = allranks("run", "-l", "python", "spawns.py")
    assert done.stdout.strip() == "no rank set"


SLEEPER = """
import os, subprocess, sys, time
helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("ready", os.getpid(), helper.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def sleeper(tmp_path: Path, clean_env: dict[str, str]) -> subprocess.Popen[str]:
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    process = subprocess.Popen(
        [sys.executable, "-m", "allranks", "run", "--nprocs", "2", "sleeper.py"],
        cwd=tmp_path, env=clean_env, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    yield process
    process.stdout.close()
    process.wait(timeout=30)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_survives_its_launcher(
    number: signal.Signals, sleeper: subprocess.Popen[str]
) -> None:
    pids: list[int] = []
    while len(pids) < 4:
        pids += [int(word) for word in sleeper.stdout.readline().split()[-2:]]
    sleeper.send_signal(number)
    until(lambda: not any(_alive(pid) for pid in pids))
    assert sleeper.wait(timeout=30) != 0


def test_cancel_ends_a_local_run(
    sleeper: subprocess.Popen[str], allranks: Allranks, tmp_path: Path
) -> None:
    sleeper.stdout.readline()
    assert "sent SIGTERM to process" in allranks("cancel", "last").stdout
    assert sleeper.wait(timeout=30) == 143
    assert '"CANCELLED"' in allranks("ps", "--json", "last").stdout


SAVES = """
import signal, sys, time
from pathlib import Path
signal.signal(signal.SIGTERM, lambda *_: sys.exit(Path("saved").touch()))
Path("ready").touch()
time.sleep(600)
"""
SLOW_PYTHON = f"""#!/bin/sh
if [ "$1" = -c ]; then touch asked; until [ -e go ]; do sleep 0.1; done; fi
exec "{sys.executable}" "$@"
"""


def test_a_signal_reaches_the_ranks_while_the_versions_are_asked_for(
    tmp_path: Path, clean_env: dict[str, str]
) -> None:
    (tmp_path / "saves.py").write_text(SAVES)
    python = tmp_path / "python"
    python.write_text(SLOW_PYTHON)
    python.chmod(0o755)
    words = [sys.executable, "-m", "allranks", "run", "--python", str(python), "saves.py"]
    process = subprocess.Popen(words, cwd=tmp_path, env=clean_env, start_new_session=True)
    try:
        until(lambda: (tmp_path / "asked").exists() and (tmp_path / "ready").exists())
        process.send_signal(signal.SIGTERM)
        until((tmp_path / "saved").exists)
    finally:
        (tmp_path / "go").touch()
        code = process.wait(timeout=60)
    [end] = tmp_path.glob("runs/saves-*/attempts/1/end.json")
    assert (code, json.loads(end.read_text())["outcome"]) == (0, "cancelled")


def test_versions_that_cannot_be_written_hold_up_no_training(
    allranks: Allranks, tmp_path: Path
) -> None:
    (tmp_path / "spoils.py").write_text(
        "import os\n"
        "from pathlib import Path\n"
        "Path(os.environ['ALLRANKS_RUN_DIR'], 'versions.json').mkdir()\n"
        "print('trained')\n"
    )
    (tmp_path / "python").write_text(SLOW_PYTHON.replace("-e go", "-e runs/*/versions.json"))
    (tmp_path / "python").chmod(0o755)
    done = allranks("run", "--python", str(tmp_path / "python"), "spoils.py")
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    assert "allranks: the versions and the code were not recorded: " in done.stderr


def test_a_file_per_rank_is_always_written(allranks: Allranks, tmp_path: Path) -> None:
    (tmp_path / "say.py").write_text("import os\nprint('I am', os.environ['RANK'])\n")
    done = allranks("run", "--nprocs", "3", "--show", "1", "say.py")
    assert done.stdout == "[1] I am 1\n"
    files = sorted(tmp_path.glob("runs/say-*/attempts/1/ranks/*.log"))
    assert [file.read_text().split(" o ")[1] for file in files] == [
        f"I am {rank}\n" for rank in range(3)
    ]
    shown = allranks("logs", "--rank", "0,2").stdout.splitlines()  # in the order of their times
    assert sorted(shown) == ["[0] I am 0", "[2] I am 2"]


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
