"""One look at a job array: one of its tasks."""

from __future__ import annotations

from pathlib import Path

import pytest

from allranks.cluster.slurm.job_states import JobState
from allranks.cluster.slurm.job_status import JobStatus
from allranks.observe.view.run_source import RunSource
from allranks.observe.view.run_view import view_run
from allranks.observe.view.view_json import view_record
from allranks.schedulers.run_state import RunStatus
from view_rig import look, make_array


def test_an_array(tmp_path: Path) -> None:
    """One task is looked at, and it says which; all of it is that task's."""
    run = make_array(tmp_path, {"0": "finished", "1": "", "2": "failed", "3": "timed out"})
    running = RunStatus(
        run, JobState.RUNNING, "4711", nodes="node[1-4]", attempts=4, why="rank 3 …"
    )
    found = look(run, running)
    assert (found.task, found.failed_tasks) == ("1", ["2", "3"])
    assert view_record(found)["task"] == "1"
    assert found.progress.step == 20
    assert [entry.attempt.number for entry in found.attempts] == [2]
    status = found.status
    assert (status.state, status.nodes, status.attempts) == (JobState.RUNNING, "node2", 1)
    assert status.why == ""


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        ("finished", JobState.COMPLETED),
        ("failed", JobState.FAILED),
        ("timed out", JobState.TIMEOUT),
        ("", JobState.RUNNING),
    ],
)
def test_the_state_of_a_task_is_its_own(tmp_path: Path, outcome: str, state: JobState) -> None:
    run = make_array(tmp_path, {"0": "", "1": outcome})
    status = look(run, RunStatus(run, JobState.RUNNING), "1").status
    assert (status.state, status.end is None) == (state, not outcome)


def test_a_task_that_has_not_begun(tmp_path: Path) -> None:
    run = make_array(tmp_path, {"0": ""})
    found = look(run, RunStatus(run, JobState.RUNNING, nodes="node1", attempts=1), "5")
    assert (found.status.state, found.status.nodes, found.attempts) == (JobState.PENDING, "", [])


def test_what_slurm_says_of_a_task(tmp_path: Path) -> None:
    """Of one that waits its own reason, of one that was killed its own end."""
    run = make_array(tmp_path, {"0": "", "1": ""})
    told = (
        JobStatus("4711_0", state=JobState.RUNNING),
        JobStatus("4711_1", state=JobState.NODE_FAIL, exit_code=1),
        JobStatus("4711_5", state=JobState.PENDING, reason="JobArrayTaskLimit"),
    )
    status = RunStatus(run, JobState.RUNNING, "4711", why="rank 3 failed first", tasks=told)
    found = {task: look(run, status, task).status for task in ("0", "1", "5", "6")}
    assert [found[task].state for task in found] == [
        JobState.RUNNING, JobState.NODE_FAIL, JobState.PENDING, JobState.PENDING,
    ]  # fmt: skip
    assert "array" in found["5"].why
    assert [found[task].why for task in ("0", "1", "6")] == ["", "", ""]


def test_a_task_that_was_killed_hard_does_not_run(tmp_path: Path) -> None:
    """It wrote no end; Slurm alone tells, and another is followed from the next look on."""
    run = make_array(tmp_path, {"0": "finished", "1": "", "2": ""})
    source = RunSource(run)
    source.refresh()
    assert source.task == "2"
    told = (
        JobStatus("4711_1", state=JobState.RUNNING),
        JobStatus("4711_2", state=JobState.OUT_OF_MEMORY, exit_code=137),
    )
    found = view_run(source, RunStatus(run, JobState.RUNNING, "4711", tasks=told))
    assert found.status.state is JobState.OUT_OF_MEMORY
    assert (found.running_tasks, found.failed_tasks) == (["1"], ["2"])
    source.refresh()
    assert source.task == "1"


def test_nothing_runs_of_an_array_that_is_over(tmp_path: Path) -> None:
    """Slurm forgets an array task by task: of the one that was killed first it may know no more."""
    run = make_array(tmp_path, {"0": "", "1": "finished"})
    told = (JobStatus("4711_1", state=JobState.COMPLETED),)
    found = look(run, RunStatus(run, JobState.FAILED, "4711", tasks=told), "1")
    assert (found.running_tasks, found.failed_tasks) == ([], ["0"])


def test_a_task_that_goes_on_in_another_job_runs(tmp_path: Path) -> None:
    run = make_array(tmp_path, {"0": "", "1": "finished"})
    told = (
        JobStatus("4711_0", state=JobState.TIMEOUT),
        JobStatus("4720_0", state=JobState.RUNNING),
    )
    found = look(run, RunStatus(run, JobState.RUNNING, "4720", tasks=told))
    assert (found.task, found.running_tasks, found.failed_tasks) == ("0", ["0"], [])


def test_why_nothing_is_known_of_a_task(tmp_path: Path) -> None:
    run = make_array(tmp_path, {"0": ""})
    silent = RunStatus(run, JobState.UNKNOWN, "4711", why="squeue did not answer")
    assert look(run, silent).status.why == "squeue did not answer"
