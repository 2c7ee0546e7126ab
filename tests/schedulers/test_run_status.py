"""How a run stands, by its folder: here, on another machine, and after every kind of end."""

from __future__ import annotations

import json
import os
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from allranks.cluster.slurm.job_states import JobState
from allranks.cluster.slurm.job_status import JobStatus
from allranks.errors import AllranksError, JobError
from allranks.runs import atomic_files as files
from allranks.runs.run_folder import Run
from allranks.runs.run_process import record_process
from allranks.schedulers import folder_status, jobs_to_query, run_statuses, scheduler_of
from allranks.schedulers.run_state import RunStatus, elapsed
from view_rig import make_array, make_run


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run that lives in this process."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    made = Run.create(tmp_path, "train", scheduler="local", cwd=tmp_path, command=["train.py"])
    record_process(made)
    made.new_attempt(launcher="python", hosts=[os.uname().nodename])
    return made


def _move(run: Run, **changes: str) -> None:
    about = json.loads((run.path / "run.json").read_text())
    (run.path / "run.json").write_text(json.dumps(about | changes))


def _grow_old(run: Run) -> None:
    long_ago = time.time() - 3600
    for path in run.path.rglob("*"):
        os.utime(path, (long_ago, long_ago))


def test_the_process_tells_here(run: Run) -> None:
    _grow_old(run)
    assert jobs_to_query(run) == []
    assert folder_status(run).state is JobState.RUNNING
    _move(run, started="0")
    status = folder_status(run)
    assert (status.state, status.why) == (JobState.FAILED, "killed")


def test_between_two_attempts_it_runs(run: Run) -> None:
    run.attempts[-1].finish(1, outcome="failed", reason="It starts again.", next="restart")
    assert folder_status(run).state is JobState.RUNNING
    assert folder_status(run).end is None
    _move(run, started="0")
    assert folder_status(run).state is JobState.FAILED


def test_a_run_on_another_machine_lives_while_it_writes(run: Run) -> None:
    _move(run, host="node1")
    assert jobs_to_query(run) == ["4711"]
    status = folder_status(run)
    assert (status.state, status.why) == (JobState.RUNNING, "it runs on node1, as its files show")
    assert elapsed(status) is not None
    _grow_old(run)
    status = folder_status(run)
    assert status.state is JobState.UNKNOWN
    assert status.why == "it was started on node1; only that machine knows its state"
    assert elapsed(status) is None
    sample = run.path / "attempts/1/nodes/node-00000.jsonl"
    sample.parent.mkdir()
    sample.write_text("{}\n")
    assert folder_status(run).state is JobState.RUNNING


@pytest.mark.parametrize(
    ("around", "shown"),
    [
        (JobState.TIMEOUT, JobState.TIMEOUT),
        (JobState.CANCELLED, JobState.CANCELLED),
        (JobState.COMPLETED, JobState.FAILED),
        (JobState.PENDING, JobState.FAILED),
        (JobState.RUNNING, JobState.RUNNING),
    ],
)
def test_the_job_around_it_takes_the_run_along(around: JobState, shown: JobState, run: Run) -> None:
    _move(run, host="node1")
    ended = datetime.now(timezone.utc)
    status = folder_status(run, JobStatus("4711", state=around, end=ended))
    assert status.state is shown
    if shown is not JobState.RUNNING:
        assert (status.why, status.end) == ("it ended with job 4711", ended)


def test_a_job_that_runs_on_does_not_keep_its_run_alive(run: Run) -> None:
    _move(run, host="node1")
    _grow_old(run)
    assert folder_status(run, JobStatus("4711", state=JobState.RUNNING)).state is JobState.UNKNOWN


def test_what_slurm_has_forgotten_is_over(run: Run) -> None:
    _move(run, host="node1")
    forgotten = JobStatus("4711", state=JobState.UNKNOWN)
    assert folder_status(run, forgotten).state is JobState.RUNNING, "another cluster's job, perhaps"
    _grow_old(run)
    assert folder_status(run, forgotten).state is JobState.FAILED


def test_nobody_resumes_or_cancels_from_afar_by_mistake(run: Run) -> None:
    _move(run, host="node1", inside_job="")
    with pytest.raises(AllranksError, match=r"on node1, not here\. Log in there and cancel it\.$"):
        scheduler_of(run).cancel(run)
    for sign in ("it runs on node1, as its files show", "only that machine knows its state"):
        with pytest.raises(JobError, match=rf"{sign}(?s:.*)resume --force"):
            scheduler_of(run).check_resumable(run, force=False)
        scheduler_of(run).check_resumable(
            run, force=True
        )  # that machine may be lost, which nobody here can see
        _grow_old(run)


def test_odd_notes_of_a_process_are_passed_over(run: Run) -> None:
    _move(run, pid="me", started="", host="", inside_job="--all")
    assert jobs_to_query(run) == []
    assert folder_status(run).state is JobState.RUNNING, "it was begun just now"
    _grow_old(run)
    assert folder_status(run).state is JobState.FAILED


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        ("finished", JobState.COMPLETED),
        ("timed out", JobState.TIMEOUT),
        ("node lost", JobState.NODE_FAIL),
        ("cancelled", JobState.CANCELLED),
        ("interrupted", JobState.INTERRUPTED),
        ("killed", JobState.FAILED),
        ("", JobState.FAILED),
    ],
)
def test_an_outcome_is_one_state_everywhere(outcome: str, state: JobState, run: Run) -> None:
    attempt = run.attempts[-1]
    attempt.finish(0 if outcome == "finished" else 1, outcome=outcome, next="stop")
    assert run_statuses([run])[0].state is state


def test_a_run_here_costs_one_more_look_at_its_file(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list has many runs, on a file system that is slow with small files."""
    read, opened = files.read_bytes, []
    monkeypatch.setattr(files, "read_bytes", lambda path: opened.append(path.name) or read(path))
    [status] = run_statuses([run])
    assert (status.state, status.is_here) == (JobState.RUNNING, True)
    assert [opened.count(name) for name in ("run.json", "attempt.json", "end.json")] == [1, 1, 1]
    _move(run, host="node1")
    assert not run_statuses([run])[0].is_here


def test_what_a_job_writes_while_slurm_is_asked_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path, windows=2, finished=False, job_id="12")
    attempt = run.path / "attempts" / "1"
    squeue = tmp_path / "squeue"
    squeue.write_text(
        "#!/bin/sh\n"
        f"""echo '{{"exit_code": 75, "outcome": "interrupted"}}' >'{attempt}/end.json'\n"""
        "echo '12|12|FAILED|None|19200|N/A|N/A|1:00:00|0|node1|main|me|train|'\n"
    )
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert run_statuses([run])[0].state is JobState.INTERRUPTED


def test_the_worst_task_stands_for_an_array(tmp_path: Path) -> None:
    array = make_array(tmp_path, {"0": "finished", "1": "failed", "2": "interrupted"})
    assert folder_status(array).state is JobState.FAILED
    (tmp_path / "attempts/2/end.json").unlink()
    assert folder_status(array).state is JobState.UNKNOWN


def test_how_long_it_ran(run: Run) -> None:
    start = datetime(2026, 11, 15, tzinfo=timezone.utc)
    status = RunStatus(run, JobState.RUNNING, start=start)
    assert elapsed(status, start.timestamp() + 5) == 5
    assert elapsed(status, start.timestamp() - 5) == 0, "two clocks differ"
    ended = RunStatus(run, JobState.FAILED, start=start, end=start + timedelta(seconds=7))
    assert elapsed(ended, start.timestamp() + 99) == 7
    for state in (JobState.UNKNOWN, JobState.PENDING, JobState.FAILED):
        assert elapsed(RunStatus(run, state, start=start)) is None
