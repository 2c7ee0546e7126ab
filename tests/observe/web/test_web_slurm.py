"""The list beside a real Slurm: our runs with their states, and the user's other jobs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from command_rig import Allranks, until


@pytest.mark.slurm
def test_runs_and_other_jobs_of_the_queue(
    tmp_path: Path, slurm: Allranks, slurm_env: dict[str, str]
) -> None:
    (tmp_path / "wait.py").write_text("import time\ntime.sleep(300)\n")
    submitted = slurm("submit", "--json", "--cpus-per-task", "1", "--time", "5m", "wait.py")
    ours = json.loads(submitted.stdout)["job_id"]
    words = ["sbatch", "--parsable", "--hold", "-J", "by hand", "-t", "2", "--wrap", "sleep 60"]
    other = subprocess.run(
        words, env=slurm_env, capture_output=True, text=True, check=True, cwd=tmp_path
    )
    theirs = other.stdout.strip()
    command = [sys.executable, "-m", "allranks", "web", "--json", "--port", "0"]
    server = subprocess.Popen(
        command, env=slurm_env, cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        told = json.loads(server.stdout.readline())
        headers = {"Authorization": f"Bearer {told['token']}"}
        address = f"http://127.0.0.1:{told['port']}/api/runs"

        def rows() -> dict[str, dict[str, object]]:
            found = httpx.get(address, headers=headers, timeout=60).json()["runs"]
            return {row["job_id"]: row for row in found}

        until(lambda: rows().get(ours, {}).get("state") == "running")
        until(lambda: httpx.get(address, headers=headers).json()["jobs"])
        jobs = {job["job_id"]: job for job in httpx.get(address, headers=headers).json()["jobs"]}
        assert ours not in jobs
        assert jobs[theirs]["name"] == "by hand"
        assert jobs[theirs]["state"] == "pending"
        assert "held" in jobs[theirs]["why"]
    finally:
        server.kill()
        server.communicate()
        subprocess.run(["scancel", ours, theirs], env=slurm_env, check=False)
