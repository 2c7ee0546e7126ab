"""What follows an attempt, in the cases that take their time: limits, preemption, arrays, lost nodes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from command_rig import Allranks, runner, until
from requeue_rig import LEAVES, STEPS, attempts

pytestmark = [pytest.mark.slow, pytest.mark.slurm, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """One of its own, as its nodes are switched off."""
    from allranks.cluster.sandbox.testing import sandbox_for_tests
    from allranks.errors import MissingDependencyError

    try:
        with sandbox_for_tests(nodes=3, settings={"KillWait": "10"}) as sandbox:
            yield sandbox
    except MissingDependencyError as error:
        pytest.skip(f"no Slurm here: {str(error).splitlines()[0]}")


@pytest.fixture
def slurm(cluster: Any, clean_env: dict[str, str], tmp_path: Path) -> Allranks:
    (tmp_path / "steps.py").write_text(STEPS)
    (tmp_path / "leaves.py").write_text(LEAVES)
    return runner(tmp_path, {**clean_env, **cluster.env})


def up(slurm: Allranks, attempt: int, ranks: int) -> None:
    """Wait until the ranks of that attempt run."""
    until(lambda: slurm("logs", "last").stdout.count(f"up {attempt}\n") == ranks, 120)


def test_a_finished_run_that_slurm_starts_once_more_ends_well(
    slurm: Allranks, cluster: Any, tmp_path: Path
) -> None:
    assert slurm("submit", "-t", "5m", "--requeue", "-f", "steps.py", "5", "5").returncode == 0
    (one,) = attempts(slurm)["attempts"]
    assert cluster.run("scontrol", "requeue", one["job_id"]).returncode == 0
    (log,) = tmp_path.glob("runs/steps-*/slurm-*.out")
    until(lambda: "has finished already" in log.read_text())
    until(lambda: "COMPLETED" in slurm("ps", "--json", "last").stdout)
    assert len(attempts(slurm)["attempts"]) == 1
    refused = slurm("resume", "last")
    assert (refused.returncode, "has finished" in refused.stderr) == (2, True)


def test_where_requeueing_is_forbidden_it_submits_itself_again(slurm: Allranks) -> None:
    words = ["-t", "5m", "--requeue", "--sbatch", "no-requeue", "--follow"]
    done = slurm("submit", *words, "steps.py", "20", "10")
    assert done.returncode == 0, done.stdout + done.stderr
    story = attempts(slurm)["attempts"]
    assert "note: Slurm does not let this job be requeued" in done.stderr
    assert [one["next"] for one in story] == ["resubmit", "done"]
    assert story[0]["job_id"] != story[1]["job_id"]
    for one in story:  # both ids name the one run
        assert "steps 10 to 20" in slurm("logs", str(one["job_id"])).stdout


def test_it_stops_without_progress_until_a_user_lets_it_go_on(slurm: Allranks) -> None:
    words = ["--requeue", "--max-no-progress", "1", "--follow"]
    done = slurm("submit", "-t", "5m", *words, "steps.py", "20", "0")
    assert done.returncode == 75, done.stdout + done.stderr
    assert "1 attempt left no newer checkpoint (--max-no-progress)." in done.stderr
    again = slurm("resume", "--max-attempts", "9", "--max-no-progress", "8", "--json", "last")
    assert again.returncode == 0, again.stderr
    folder = Path(json.loads(again.stdout)["folder"])
    assert "--max-attempts=9 --max-no-progress=8" in (folder / "job.sh").read_text()
    slurm("cancel", "last")


def test_attempts_are_limited_until_a_user_raises_the_limit(slurm: Allranks) -> None:
    words = ["-t", "5m", "--requeue", "--max-attempts", "2", "--follow", "steps.py", "3", "1"]
    done = slurm("submit", *words)
    assert done.returncode == 75, done.stdout + done.stderr
    assert "This was attempt 2, and --max-attempts is 2." in done.stderr
    again = slurm("resume", "--max-attempts", "9", "--follow", "last")
    assert again.returncode == 0, again.stdout + again.stderr
    assert [one["next"] for one in attempts(slurm)["attempts"]] == ["requeue", "stop", "done"]


def test_the_tasks_of_an_array_go_on_each_for_itself(slurm: Allranks, tmp_path: Path) -> None:
    done = slurm(
        "submit", "-t", "5m", "--array", "3-4", "--requeue", "--follow", "steps.py", "20", "10"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    story = attempts(slurm)["attempts"]
    for task in ("3", "4"):
        mine = [one for one in story if one["array_task"] == task]
        assert [one["first_step"] for one in mine] == [0, 10]
        assert [one["outcome"] for one in mine] == ["interrupted", "finished"]
    (run,) = tmp_path.glob("runs/steps-*")
    assert sorted(path.name for path in run.glob("finished-*")) == ["finished-3", "finished-4"]


@pytest.mark.parametrize("mode", ["REQUEUE", "CANCEL"])
def test_a_preempted_job_goes_on_once(
    slurm: Allranks, cluster: Any, tmp_path: Path, mode: str
) -> None:
    """Slurm puts it back itself, or kills it; then the script asks Slurm to put it back."""
    cluster.run("scontrol", "update", "PartitionName=low", f"PreemptMode={mode}")
    size = ["-N", "3", "--exclusive", "-t", "5"]
    slurm("submit", "-p", "low", *size, "--requeue", "leaves.py", "2")
    up(slurm, 1, 3)
    taken = cluster.run("sbatch", "-o", "/dev/null", "-p", "main", *size, "--wrap", "sleep 1")
    assert taken.returncode == 0, taken.stderr
    done = slurm("logs", "-f", "last")
    assert done.returncode == 0, done.stdout + done.stderr
    story = attempts(slurm)["attempts"]
    assert [one["outcome"] for one in story] == ["preempted", "finished"]
    assert len({one["job_id"] for one in story}) == 1


STUBBORN = """
import json, os, pathlib, signal, sys, time
attempt = pathlib.Path(os.environ["ALLRANKS_ATTEMPT_DIR"])
number = int(attempt.name)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.environ["RANK"] == "0":
    progress = {"first_step": number - 1, "step": number, "saved_step": number, "began": time.time()}
    (attempt / "progress.json").write_text(json.dumps(progress | {"updated": time.time()}))
print("up", number, flush=True)
time.sleep(600 if number < int(sys.argv[1]) else 1)
"""


def test_a_time_limit_that_finds_the_ranks_at_work(slurm: Allranks, tmp_path: Path) -> None:
    """They even ignore TERM; the script asks for the next attempt before KILL comes."""
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    done = slurm("submit", "-t", "1", "--requeue", "--follow", "stubborn.py", "2", timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    story = attempts(slurm)["attempts"]
    assert [one["outcome"] for one in story] == ["timed out", "finished"]
    assert len({one["job_id"] for one in story}) == 1


def test_a_node_that_fails_twice_is_kept_away_from(
    slurm: Allranks, cluster: Any, tmp_path: Path
) -> None:
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    cluster.run("scontrol", "update", "NodeName=node3", "State=DRAIN", "Reason=later")
    slurm("submit", "-N", "2", "-t", "10m", "--requeue", "stubborn.py", "3")
    for number in (1, 2):
        up(slurm, number, 2)
        assert cluster.kill_node("node2")
        until(lambda: "PENDING" in slurm("ps", "--json", "last").stdout, 120)
        cluster.start_node("node2")
    until(lambda: len(list(tmp_path.glob("runs/*/excluded"))) == 1, 120)
    cluster.run("scontrol", "update", "NodeName=node3", "State=RESUME")
    done = slurm("logs", "-f", "last", timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    story = attempts(slurm)["attempts"]
    assert [one["outcome"] for one in story] == ["node lost", "node lost", "moved away", "finished"]
    assert [one["lost_nodes"] for one in story[:2]] == [["node2"], ["node2"]]
    assert story[-1]["nodes"] == ["node[1,3]"]
    (log,) = [
        path
        for path in tmp_path.glob("runs/*/slurm-*.out")
        if "a new job avoids it" in path.read_text()
    ]
    assert "node2 failed 2 times in this run" in log.read_text()
