"""Crashed ranks started again on this machine, and a run that is resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from command_rig import Allranks, until

COUNTS = """
import os, pathlib, sys
number = int(pathlib.Path(os.environ["ALLRANKS_ATTEMPT_DIR"]).name)
print("attempt", number, "rank", os.environ["RANK"], flush=True)
codes = [int(word) for word in sys.argv[1:]]
if os.environ["RANK"] == "1":
    sys.exit(codes[number - 1])
"""


def story(allranks: Allranks) -> list[dict[str, Any]]:
    (found,) = json.loads(allranks("ps", "--attempts", "--json", "last").stdout)
    return found["attempts"]


def test_crashed_ranks_start_again_and_then_fail_with_the_first_error(
    allranks: Allranks, tmp_path: Path
) -> None:
    (tmp_path / "counts.py").write_text(COUNTS)
    done = allranks("run", "--nprocs", "2", "--restarts", "1", "counts.py", "9", "7", "9", "0")
    assert done.returncode == 7, done.stderr
    assert "Restart 1 of 1 follows." in done.stderr
    assert "after 1 of 1 restarts" in done.stderr
    # A user who resumes it gets as many restarts again.
    again = allranks("resume", "last")
    assert again.returncode == 0, again.stderr
    assert [one["next"] for one in story(allranks)] == ["restart", "stop", "restart", "done"]
    lines = allranks("logs", "--rank", "0", "last").stdout.splitlines()
    said = [line for line in lines if not line.startswith("---")]
    assert said == [f"[0] attempt {number} rank 0" for number in (1, 2, 3, 4)]
    refused = allranks("resume", "last")
    assert refused.returncode == 2
    assert "has finished" in refused.stderr


def test_what_a_user_ends_is_not_started_again(
    allranks: Allranks, clean_env: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "long.py").write_text("import time; print('up', flush=True); time.sleep(600)\n")
    words = ["run", "--nprocs", "1", "--restarts", "5", "long.py"]
    process = subprocess.Popen(
        [sys.executable, "-m", "allranks", *words], cwd=tmp_path, env=clean_env,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    until(
        lambda: any(
            "up" in path.read_text() for path in tmp_path.glob("runs/*/attempts/1/ranks/*.log")
        )
    )
    refused = allranks("resume", "last")
    assert refused.returncode == 2
    assert "has not ended" in refused.stderr
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(60) != 0
    (one,) = story(allranks)
    assert one["outcome"] == "cancelled"


def test_the_end_of_a_killed_attempt_is_written_by_the_next(
    allranks: Allranks, clean_env: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "waits.py").write_text(
        "import os, time\nif not os.path.exists('go'): print('up', flush=True); time.sleep(600)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "allranks", "run", "--nprocs", "1", "waits.py"],
        cwd=tmp_path, env=clean_env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    logs = "runs/*/attempts/1/ranks/*.log"
    until(lambda: any("up" in path.read_text() for path in tmp_path.glob(logs)))
    process.kill()
    process.wait(60)
    (tmp_path / "go").touch()
    again = allranks("resume", "last")
    assert again.returncode == 0, again.stderr
    assert [(one["outcome"], one["next"]) for one in story(allranks)] == [
        ("killed", "stop"),
        ("finished", "done"),
    ]
