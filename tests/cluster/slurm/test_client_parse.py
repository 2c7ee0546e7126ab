"""Recorded texts of squeue and sacct (Slurm 22.05.8, SLURM_TIME_FORMAT=%s)."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from allranks.cluster.slurm.job_states import (
    PRECEDENCE,
    SLURM_STATES,
    JobState,
    parse_state,
    parse_states,
)
from allranks.cluster.slurm.job_status import JobStatus, parse_sacct, parse_squeue, summarise
from allranks.cluster.slurm.pending_reasons import REASONS, pending_reason_text

SQUEUE = """\
1|1|FAILED|NonZeroExitCode|768|1794711126|1794711126|10:00|0|node1|main|root|wrap|
3|3|FAILED|JobLaunchFailure|9|1794711126|1794711126|10:00|0|node1|main|root|wrap|
4_1|17|CANCELLED|None|15|1794711126|1794711161|10:00|0|node1|main|root|wrap|
4_[3-5%2]|4|PENDING|JobArrayTaskLimit|0|N/A|N/A|10:00|0||main|root|wrap|
6|6|PENDING|Resources|0|1794711726|1794712026|1-00:05:00|2||main|root|a | b|
7+1|8|RUNNING|None|0|1794711126|1794711726|UNLIMITED|0|node[1-2]|main|root|x|
a warning that some plugin printed
"""
SACCT = """\
1|1|REQUEUED|None|3:0|1794711126|1794711161|00:10:00|node1|main|root|wrap
3|3|FAILED|None|0:9|1794711126|1794711126|00:10:00|node1|main|root|wrap
5|5|PENDING|PartitionNodeLimit|0:0|Unknown|Unknown|00:10:00|None assigned|main|root|wrap
4_1|17|CANCELLED by 0|None|0:0|1794711126|1794711161|Partition_Limit|node1|main|root|a|b
1|1|FAILED|None|3:0|1794711167|1794711167|00:10:00|node1|main|root|wrap
6|6|TIMEOUT|None|0:0|1794711167|1794711267|00:01:00|node1|main|root|wrap
"""


@pytest.fixture
def queue() -> dict[str, JobStatus]:
    return {job.job_id: job for job in parse_squeue(SQUEUE)}


@pytest.fixture
def accounts() -> dict[str, JobStatus]:
    return {job.job_id: job for job in parse_sacct(SACCT)}


def test_squeue_ends(queue: dict[str, JobStatus]) -> None:
    ends = [(queue[j].state, queue[j].exit_code, queue[j].signal) for j in ("1", "3", "4_1")]
    assert ends == [
        (JobState.FAILED, 3, None),
        (JobState.FAILED, 137, 9),
        (JobState.CANCELLED, 143, 15),
    ]
    assert queue["1"].end == datetime.fromtimestamp(1794711126, timezone.utc)
    assert queue["1"].reason == "NonZeroExitCode"
    assert queue["4_1"].raw_id == "17"


def test_squeue_pending(queue: dict[str, JobStatus]) -> None:
    waiting = queue["6"]
    assert (waiting.state, waiting.reason, waiting.restarts) == (JobState.PENDING, "Resources", 2)
    assert waiting.expected_start == datetime.fromtimestamp(1794711726, timezone.utc)
    assert waiting.start is waiting.end is waiting.exit_code is None
    assert waiting.time_limit == 86400 + 300
    assert waiting.name == "a | b"
    assert queue["4_[3-5%2]"].expected_start is None


def test_squeue_running(queue: dict[str, JobStatus]) -> None:
    running = queue["7+1"]
    assert running.start is not None
    assert (running.end, running.time_limit, running.nodes) == (None, None, "node[1-2]")
    assert running.state.active


def test_foreign_lines_are_passed_over(queue: dict[str, JobStatus]) -> None:
    assert len(queue) == 6


def test_exit_codes_in_pairs_are_read_too() -> None:
    (job,) = parse_squeue("1|1|FAILED|x|3:0|0|0|1:00|0|n|p|u|n|")
    assert job.exit_code == 3


def test_iso_times_are_read_too() -> None:
    (job,) = parse_squeue("1|1|RUNNING|x|0|2026-11-15T02:52:06|0|1:00|0|n|p|u|n|")
    assert job.start is not None
    assert job.start.astimezone().replace(tzinfo=None) == datetime(2026, 11, 15, 2, 52, 6)


def test_sacct_counts_lives(accounts: dict[str, JobStatus]) -> None:
    assert (accounts["1"].restarts, accounts["1"].state) == (1, JobState.FAILED)
    assert accounts["3"].restarts == 0
    assert accounts["5"].nodes == ""


def test_zero_is_success_only(accounts: dict[str, JobStatus]) -> None:
    assert (accounts["4_1"].state, accounts["4_1"].exit_code) == (JobState.CANCELLED, 143)
    assert (accounts["6"].state, accounts["6"].exit_code) == (JobState.TIMEOUT, 124)
    assert accounts["4_1"].name == "a|b"


@pytest.mark.parametrize(
    ("states", "whole", "code"),
    [
        ("COMPLETED RUNNING PENDING", JobState.RUNNING, None),
        ("COMPLETED PENDING FAILED", JobState.PENDING, None),
        ("COMPLETED FAILED", JobState.FAILED, 1),
        ("COMPLETED COMPLETED", JobState.COMPLETED, 0),
        ("CANCELLED COMPLETED", JobState.CANCELLED, 143),
    ],
)
def test_arrays_as_a_whole(states: str, whole: JobState, code: int | None) -> None:
    rows = "".join(
        f"9_{n}|{n}|{word}|None|0|1794711126|1794711126|10:00|{n}|n{n}|p|u|x|\n"
        for n, word in enumerate(states.split())
    )
    job = summarise("9", parse_squeue(rows))
    assert (job.job_id, job.state, job.exit_code) == ("9", whole, code)
    assert len(job.tasks) == len(states.split()) == job.restarts + 1


def test_words_of_states() -> None:
    assert parse_state("CANCELLED by 1000") is JobState.CANCELLED
    assert parse_state("CANCELLED+") is JobState.CANCELLED
    assert parse_state("") is parse_state("SOMETHING_NEW") is JobState.UNKNOWN
    ours = {JobState.INTERRUPTED}  # told by a run's own folder, never by Slurm
    assert {parse_state(word) for word in ("NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED")} == {
        JobState.NODE_FAIL
    }
    assert parse_states("TIMEOUT,COMPLETING") == [JobState.TIMEOUT, JobState.COMPLETING]
    assert (
        set(SLURM_STATES.values()) | {JobState.UNKNOWN} == set(JobState) - ours == set(PRECEDENCE)
    )


@pytest.mark.parametrize(
    ("reason", "part"),
    [
        ("Resources", "next"),
        ("(Priority)", "higher priority"),
        ("ReqNodeNotAvail,_UnavailableNodes:node[1-3]", "(unavailable: node[1-3])"),
        ("ReqNodeNotAvail, Reserved for maintenance", "(Reserved for maintenance)"),
        ("QOSMaxMemoryPerUser", "a limit of your account or QOS"),
        ("launch_failed_requeued_held", "held"),
        ("Nodes required for job are DOWN, DRAINED or reserved", "its nodes are down"),
        ("SomethingNew", "SomethingNew"),
        ("", "not looked at it"),
    ],
)
def test_reasons_in_words(reason: str, part: str) -> None:
    assert part in pending_reason_text(reason)
    assert len(REASONS) >= 40


def test_an_end_is_the_jobs_own_or_from_outside() -> None:
    assert [state for state in JobState if state.ended and not state.terminated] == [
        JobState.COMPLETED,
        JobState.FAILED,
        JobState.INTERRUPTED,
        JobState.OUT_OF_MEMORY,
    ]
    assert [state.outcome for state in JobState if state.terminated] == [
        "cancelled",
        "timed out",
        "preempted",
        "node lost",
    ]
    assert JobState.OUT_OF_MEMORY.outcome == "failed"
    assert JobState.RUNNING.outcome == JobState.UNKNOWN.outcome == ""
