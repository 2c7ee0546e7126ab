"""What follows an attempt: the rules, and the files and words that they are told by."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from allranks.cluster.slurm.job_states import JobState, parse_state
from allranks.runs.atomic_files import parse_stamp
from allranks.runs.attempt import Attempt
from allranks.runs.progress_file import AttemptProgress, record_interruption
from allranks.runtime.agent.agent_options import RequeuePolicy
from allranks.runtime.agent.attempt_end import AttemptEnd, Decision, end_attempt
from allranks.runtime.agent.scontrol_job import JobFacts, gone_nodes, lost_nodes, read_job

ON = RequeuePolicy(requeue=True)


class Life:
    """The attempts of one run, one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = 0

    def attempt(self, saved: int | None = None, *, left: str = "", **about: Any) -> Attempt:
        self.count += 1
        path = self.folder / "attempts" / str(self.count)
        path.mkdir(parents=True)
        known = {"job_id": "7", "restart": 0, "start": "2026-01-01T00:00:00Z", "hosts": ["n[1-2]"]}
        (path / "attempt.json").write_text(json.dumps({**known, **about}))
        if saved is not None:
            AttemptProgress(step=saved, saved_step=saved, began=time.time()).write(path)
        if left:
            record_interruption(path, left)
        return Attempt.open(path)

    def end(
        self, code: int, policy: RequeuePolicy = ON, saved: int | None = None, **how: Any
    ) -> Decision:
        left, job = how.pop("left", ""), how.pop("job", JobFacts())
        terminated, lost = how.pop("terminated", False), how.pop("lost", [])
        attempt = self.attempt(saved, left=left, **how)
        return end_attempt(AttemptEnd(attempt, code, policy, job, terminated, lost))


@pytest.fixture
def life(tmp_path: Path) -> Life:
    return Life(tmp_path)


def test_the_end_of_a_training_is_the_end(life: Life) -> None:
    decision = life.end(0, saved=10)
    assert (decision.next, decision.code, decision.outcome) == ("done", 0, "finished")
    end = json.loads((life.folder / "attempts/1/end.json").read_text())
    assert (end["exit_code"], end["outcome"], end["next"]) == (0, "finished", "done")
    assert end["reason"] == decision.reason


def test_ranks_that_left_go_on_while_they_get_further(life: Life) -> None:
    assert life.end(0, saved=10, left="the end is near").next == "requeue"
    assert life.end(0, saved=20, left="the end is near").next == "requeue"
    for expected in ("requeue", "requeue", "stop"):
        decision = life.end(0, saved=20, left="the end is near")
        assert decision.next == expected
    assert decision.code == 75
    assert "3 attempts in a row left no newer checkpoint" in decision.reason


def test_a_resumption_that_saves_only_what_it_loaded_has_not_moved(life: Life) -> None:
    policy = RequeuePolicy(requeue=True, max_no_progress=1)
    attempt = life.attempt(left="soon over")
    AttemptProgress(first_step=40, step=45, saved_step=40).write(attempt.path)
    assert end_attempt(AttemptEnd(attempt, 0, policy)).next == "stop"


def test_ranks_that_tell_nothing_are_believed_when_they_leave_on_purpose(life: Life) -> None:
    for _ in range(5):
        assert life.end(75).next == "requeue"
    for expected in ("requeue", "requeue", "stop"):
        assert life.end(143, job=JobFacts(JobState.TIMEOUT)).next == expected


def test_attempts_are_limited(life: Life) -> None:
    policy = RequeuePolicy(requeue=True, max_attempts=2)
    assert life.end(0, policy, saved=1, left="soon over").next == "requeue"
    decision = life.end(0, policy, saved=2, left="soon over")
    assert (decision.next, decision.code) == ("stop", 75)
    assert "This was attempt 2, and --max-attempts is 2." in decision.reason
    assert f"allranks resume --max-attempts 4 {life.folder.name}" in decision.reason
    # One more by hand tells both numbers.
    assert "attempt 3, and --max-attempts is 2" in life.end(0, policy, saved=3, left="x").reason


def test_crashes_are_attempts_too(life: Life) -> None:
    policy = RequeuePolicy(restarts=50, max_attempts=3)
    ends = [life.end(1, policy, saved=number) for number in (1, 2, 3)]
    assert [end.next for end in ends] == ["restart", "restart", "stop"]
    assert "--max-attempts is 3" in ends[-1].reason


def test_restarts_are_counted_on_in_a_job_that_only_took_other_nodes(life: Life) -> None:
    policy = RequeuePolicy(requeue=True, restarts=2)
    assert [life.end(1, policy, saved=number).next for number in (1, 2)] == ["restart"] * 2
    life.attempt().finish(0, outcome="moved away", next="resubmit")
    assert life.end(1, policy, saved=4, job_id="8").next == "stop"


def test_restarts_of_ranks_that_tell_nothing_are_those_that_were_asked_for(life: Life) -> None:
    policy = RequeuePolicy(restarts=5, max_no_progress=2)
    assert [life.end(1, policy).next for _ in range(6)] == ["restart"] * 5 + ["stop"]


@pytest.mark.parametrize("left", ["", "the end is near"])
def test_a_run_that_a_user_cancelled_stays_so_whatever_slurm_says(life: Life, left: str) -> None:
    (life.folder / "cancelled").touch()
    decision = life.end(1, RequeuePolicy(True, restarts=9), left=left)
    assert (decision.next, decision.outcome) == ("stop", "cancelled")


def test_a_way_back_that_slurm_does_not_give_is_not_promised(life: Life) -> None:
    attempt = life.attempt(4, left="the end is near")
    decision = end_attempt(AttemptEnd(attempt, 0, ON, gave_up=True))
    assert (decision.next, decision.code) == ("stop", 75)
    assert decision.reason == (
        "The end is near. Slurm did not requeue it. "
        f"Resume it with: allranks resume {life.folder.name}"
    )


def test_without_requeue_it_says_how_to_go_on(life: Life) -> None:
    decision = life.end(0, RequeuePolicy(), saved=1, left="soon over")
    assert (decision.next, decision.code, decision.outcome) == ("stop", 75, "interrupted")
    assert f"allranks resume {life.folder.name}" in decision.reason


def test_where_slurm_forbids_it_a_new_job_is_submitted(life: Life) -> None:
    assert life.end(0, saved=1, left="x", job=JobFacts(may_requeue=False)).next == "resubmit"


@pytest.mark.parametrize("code", [2, 3, 4, 78])
def test_a_mistake_is_not_repeated(life: Life, code: int) -> None:
    decision = life.end(code, RequeuePolicy(requeue=True, restarts=5))
    assert (decision.next, decision.code, decision.outcome) == ("stop", code, "failed")


def test_a_crash_is_repeated_as_often_as_was_asked_for(life: Life) -> None:
    policy = RequeuePolicy(restarts=2, max_no_progress=9)
    assert [life.end(1, policy).next for _ in range(3)] == ["restart", "restart", "stop"]
    # In another life of the job the count begins anew.
    assert life.end(1, policy, restart=1).next == "restart"
    assert life.end(1).next == "stop"


def test_a_crash_without_progress_is_not_repeated_for_ever(life: Life) -> None:
    policy = RequeuePolicy(restarts=50)
    assert [life.end(1, policy, saved=5).next for _ in range(4)] == ["restart"] * 3 + ["stop"]


@pytest.mark.parametrize("left", ["", "soon over"])
def test_what_a_user_ended_stays_ended(life: Life, left: str) -> None:
    for how in ({"job": JobFacts(JobState.CANCELLED)}, {"terminated": True}):
        decision = life.end(
            143, RequeuePolicy(True, restarts=9), saved=life.count + 1, left=left, **how
        )
        assert (decision.next, decision.outcome) == ("stop", "cancelled")
        assert decision.code == 143


def test_what_slurm_has_put_back_is_left_to_slurm(life: Life) -> None:
    decision = life.end(143, saved=3, job=JobFacts(JobState.REQUEUED))
    assert (decision.next, decision.code, decision.outcome) == ("requeued", 0, "preempted")


@pytest.mark.parametrize("state", ["NODE_FAIL", "BOOT_FAIL"])
def test_a_node_that_fails_or_does_not_boot_is_not_the_jobs_failure(life: Life, state: str) -> None:
    """Commands and the agent read Slurm's states in one way."""
    job = read_job(JOB.format(state, "None", 1, 0, START, "None"), 0)
    decision = life.end(1, saved=3, job=job)
    assert (decision.next, decision.outcome) == ("requeue", parse_state(state).outcome)
    assert decision.outcome == "node lost"


def test_a_crash_by_a_lost_node_goes_on(life: Life) -> None:
    decision = life.end(1, saved=3, lost=["n2"])
    assert (decision.next, decision.outcome) == ("requeue", "node lost")
    assert Attempt.open(life.folder / "attempts/1").lost_nodes == ["n2"]


def test_the_tasks_of_an_array_are_counted_apart(life: Life) -> None:
    policy = RequeuePolicy(requeue=True, max_attempts=2)
    for task in ("0", "1"):
        assert life.end(0, policy, saved=1, left="x", array_task=task).next == "requeue"
    assert life.end(0, policy, saved=2, left="x", array_task="0").next == "stop"


# What Slurm 22.05 says of a job, as it was seen in each case.
JOB = "JobId=9 JobName=a=b JobState={} Reason={} Dependency=(null) Requeue={} Restarts={} StartTime={} PreemptTime={}"
START = "2026-11-15T12:51:18"


@pytest.mark.parametrize(
    ("state", "reason", "restarts", "preempted", "ended_by"),
    [
        ("RUNNING", "None", 1, "None", None),
        ("RUNNING", "None", 1, "2026-11-15T12:51:38", JobState.PREEMPTED),
        ("RUNNING", "None", 1, "2026-11-15T12:40:00", None),  # of the attempt before
        ("COMPLETING", "None", 1, "None", JobState.CANCELLED),
        ("COMPLETING", "TimeLimit", 1, "None", JobState.TIMEOUT),
        ("COMPLETING", "NodeDown", 1, "None", JobState.NODE_FAIL),
        ("COMPLETING", "None", 2, "", JobState.REQUEUED),
        ("COMPLETING", "None", 1, "2026-11-15T12:51:38", JobState.PREEMPTED),
        ("TIMEOUT,COMPLETING", "None", 1, "None", JobState.TIMEOUT),
        ("CANCELLED", "None", 1, "None", JobState.CANCELLED),
        ("NODE_FAIL,COMPLETING", "None", 1, "None", JobState.NODE_FAIL),
        ("BOOT_FAIL", "None", 1, "None", JobState.NODE_FAIL),
        ("BOOT_FAIL,COMPLETING", "None", 1, "None", JobState.NODE_FAIL),
        ("RUNNING,COMPLETING", "None", 1, "None", JobState.CANCELLED),
    ],
)
def test_what_ended_a_job(
    state: str, reason: str, restarts: int, preempted: str, ended_by: JobState | None
) -> None:
    text = JOB.format(state, reason, 1, restarts, START, preempted)
    facts = read_job(text, 1)
    assert (facts.ended_by, facts.ending) == (ended_by, state != "RUNNING")
    assert facts.may_requeue
    assert not read_job(JOB.format(state, reason, 0, restarts, START, preempted), 1).may_requeue


@pytest.mark.parametrize(
    "state",
    ["SUSPENDED", "RUNNING,SIGNALING", "RUNNING,RESIZING", "STAGE_OUT", "CONFIGURING",
     "OUT_OF_MEMORY", "FAILED"],
)  # fmt: skip
def test_a_state_that_nobody_caused_is_no_cancellation(state: str) -> None:
    facts = read_job(JOB.format(state, "None", 1, 0, START, "None"), 0)
    assert (facts.ended_by, facts.ending) == (None, False)


def test_a_users_words_do_not_count_as_slurms() -> None:
    told = JOB.format("RUNNING", "None", 1, 0, START, "None")
    more = " Comment=x Reason=TimeLimit Restarts=9 Requeue=0 WorkDir=/a JobState=CANCELLED"
    assert read_job(told + more, 0) == JobFacts(state="JobState=RUNNING Reason=None")


def test_a_silent_slurm_says_nothing() -> None:
    assert read_job("", 0) == JobFacts()


def test_nodes_that_are_gone_or_came_back() -> None:
    nodes = "\n".join(
        f"NodeName=n{number} Arch=x86_64 State={state} BootTime={boot} SlurmdStartTime={boot}"
        for number, state, boot in [
            (1, "MIXED", "2026-01-01T10:00:00"),
            (2, "DOWN+NOT_RESPONDING", "2026-01-01T10:00:00"),
            (3, "IDLE*", "2026-01-01T10:00:00"),
            (4, "ALLOCATED", "2026-01-01T13:00:00"),
            (5, "MIXED+DRAIN", "2026-01-01T10:00:00"),
        ]
    )
    since = parse_stamp("2026-01-01T12:00:00")
    assert since is not None
    assert lost_nodes(nodes, since.astimezone()) == ["n2", "n3", "n4", "n5"]
    assert gone_nodes(nodes) == ["n2", "n3"]  # a node that is drained still serves its jobs


def test_the_script_gets_a_word_and_a_code(life: Life) -> None:
    attempt = life.attempt(4, left="the end is near")
    words = ["attempt-end", str(attempt.path), "0", "--requeue", "--job", ""]
    done = subprocess.run(
        [sys.executable, "-m", "allranks.runtime.agent", *words],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "requeue 0 --requeue JobState=UNKNOWN\n"
    assert done.stderr.startswith("allranks: The end is near. The job is requeued (saved")
    again = [*words[:2], "143", *words[3:], "--terminated", "--ranks-running"]
    done = subprocess.run(
        [sys.executable, "-m", "allranks.runtime.agent", *again],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "wait 0\n"  # the job runs: the ranks may still leave by themselves
