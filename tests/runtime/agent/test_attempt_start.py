"""Before an attempt: what became of the one before it, and nodes that cannot be trusted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from allranks.runs.attempt import Attempt
from allranks.runtime.agent.agent_options import RequeuePolicy
from allranks.runtime.agent.attempt_start import start_attempt

ON = RequeuePolicy(requeue=True)
NODES = (
    "NodeName=n1 State=ALLOCATED\nNodeName=n2 State=DOWN*+NOT_RESPONDING\nNodeName=n9 State=DOWN*"
)


def attempt(folder: Path, number: int, **about: Any) -> Attempt:
    path = folder / "attempts" / str(number)
    (path / "failures").mkdir(parents=True)
    known = {"job_id": "7", "start": "2026-01-01T00:00:00Z", "hosts": ["n[1-2]"]}
    (path / "attempt.json").write_text(json.dumps({**known, **about}))
    return Attempt.open(path)


def test_the_first_has_nothing_before_it(tmp_path: Path) -> None:
    assert start_attempt(attempt(tmp_path, 1), ON, "", "") == ("start", "")


def test_a_killed_attempt_gets_its_end_from_the_next(tmp_path: Path) -> None:
    first = attempt(tmp_path, 1)
    word, said = start_attempt(attempt(tmp_path, 2, restart=1), ON, NODES, "")
    assert (word, said) == ("start", "Attempt 1 was killed: n2 failed.")
    ended = Attempt.open(first.path)
    assert (ended.outcome, ended.lost_nodes, ended.exit_code) == ("node lost", ["n2"], None)


def test_an_end_that_was_written_is_left_alone(tmp_path: Path) -> None:
    first = attempt(tmp_path, 1).finish(0, outcome="interrupted", next="requeue")
    assert start_attempt(attempt(tmp_path, 2), ON, NODES, "") == ("start", "")
    assert Attempt.open(first.path) == first


def test_a_node_that_failed_twice_is_kept_away_from(tmp_path: Path) -> None:
    attempt(tmp_path, 1)
    assert start_attempt(attempt(tmp_path, 2, restart=1), ON, NODES, "n7")[0] == "start"
    word, said = start_attempt(attempt(tmp_path, 3, restart=2), ON, NODES, "n7")
    assert word == "resubmit --exclude=n7,n2"
    assert "n2 failed 2 times in this run: a new job avoids it." in said
    assert (tmp_path / "excluded").read_text() == "n7,n2\n"
    # Elsewhere the run goes on.
    assert start_attempt(attempt(tmp_path, 4, hosts=["n[3-4]"]), ON, "", "")[0] == "start"


def death(folder: Path, number: int, host: str, signal: int, **about: Any) -> Attempt:
    """An attempt in which rank 3 died hard on that node."""
    one = attempt(folder, number, **about)
    failure = {"rank": 3, "host": host, "exit_code": 128 + signal, "signal": signal, "time": "1"}
    (one.path / "failures/rank-00003.json").write_text(json.dumps(failure))
    return one.finish(128 + signal, outcome="failed", next="restart")


def test_a_hard_death_of_the_first_rank_counts_against_its_node(tmp_path: Path) -> None:
    death(tmp_path, 1, "n2", 11)
    death(tmp_path, 2, "n2", 9)
    assert start_attempt(attempt(tmp_path, 3), ON, "", "")[0].startswith("resubmit --exclude=")


def test_a_death_that_comes_along_to_other_nodes_is_the_scripts(tmp_path: Path) -> None:
    death(tmp_path, 1, "n2", 11)
    death(tmp_path, 2, "n2", 11)
    death(tmp_path, 3, "n4", 11, hosts=["n[3-4]"])
    assert start_attempt(attempt(tmp_path, 4), ON, "", "")[0] == "start"


def test_only_names_that_slurm_knows_are_kept_away_from(tmp_path: Path) -> None:
    """A node may call itself otherwise; sbatch would refuse the whole list."""
    for number in (1, 2):
        death(tmp_path, number, "n2.cluster.org", 7)
    assert start_attempt(attempt(tmp_path, 3), ON, "", "")[0].startswith("resubmit --exclude=")
    assert (tmp_path / "excluded").read_text() == "n2\n"
    other = tmp_path / "other"
    for number in (1, 2):
        death(other, number, "localhost", 7)
    assert start_attempt(attempt(other, 3), ON, "", "")[0] == "start"


def test_a_job_that_submitted_itself_is_limited_as_well(tmp_path: Path) -> None:
    """No node is avoided once more when the attempts are used up."""
    policy = RequeuePolicy(requeue=True, max_attempts=2)
    for number in (1, 2):
        death(tmp_path, number, "n2", 7)
    (tmp_path / "resubmitted").write_text("8\n")
    word, said = start_attempt(attempt(tmp_path, 3, job_id="8"), policy, "", "")
    assert (word, "--max-attempts" in said) == ("stop 75", True)
    assert start_attempt(attempt(tmp_path, 4, job_id="9"), policy, "", "")[0].startswith(
        "resubmit --exclude="
    )  # by a user


def test_slurms_own_restarts_are_limited_too(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        word, _ = start_attempt(attempt(tmp_path, number, restart=number - 1), ON, "", "")
        assert word == "start"
    word, said = start_attempt(attempt(tmp_path, 4, restart=3), ON, "", "")
    assert word == "stop 75"
    assert "3 attempts in a row left no newer checkpoint" in said
    # A user who submits it again is not stopped.
    assert start_attempt(attempt(tmp_path, 5, restart=0), ON, "", "")[0] == "start"
