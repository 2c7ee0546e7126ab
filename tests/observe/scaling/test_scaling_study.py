"""The folder of a study: found again, never taken for a run, without secrets."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from allranks.cluster.slurm.job_states import JobState
from allranks.errors import JobError, RunNotFoundError, UsageError
from allranks.observe.scaling.point_states import PointPoller
from allranks.observe.scaling.scaling_study import (
    DONE,
    FAILED,
    RUNNING,
    WAITING,
    Point,
    Study,
    default_root,
    find_study,
    lock_study,
)
from allranks.observe.scaling.study_runner import analyse_now, load_secrets, prepare_resume
from allranks.runs.run_folder import Run
from allranks.runs.run_lookup import list_runs
from allranks.schedulers.run_state import RunStatus
from scaling_rig import add_point, make_study


def test_a_study_is_read_as_it_was_written(tmp_path: Path) -> None:
    study = make_study(tmp_path, kind="weak", steps=7, values={"script": "x.py", "args": ["-a"]})
    add_point(study, 2, rate=10)
    assert Study.open(study.path) == study


def test_it_is_found_by_name_id_and_folder(tmp_path: Path) -> None:
    old, new = make_study(tmp_path), make_study(tmp_path)
    other = make_study(tmp_path, "other")
    assert find_study("train", tmp_path).id == new.id
    assert find_study(old.id, tmp_path).path == old.path
    assert find_study(str(other.path), tmp_path).path == other.path
    assert find_study("last", tmp_path).id in (new.id, other.id)
    with pytest.raises(RunNotFoundError, match="There are: "):
        find_study("nobody", tmp_path)


def test_it_is_no_run_and_its_points_are(tmp_path: Path) -> None:
    study = make_study(tmp_path)
    add_point(study, 1, rate=10)
    assert [run.path.name.startswith("train-1-1-") for run in list_runs(tmp_path)] == [True]


def test_secrets_stay_out_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"env": ["API_TOKEN=abc123", "A=b"]}
    study = make_study(tmp_path, values=values, secrets=["API_TOKEN"])
    assert "abc123" not in (study.path / "study.json").read_text()
    again = Study.open(study.path)
    assert again.values == {"env": ["A=b"]}
    with pytest.raises(UsageError, match="export API_TOKEN"):
        load_secrets(again)
    monkeypatch.setenv("API_TOKEN", "abc123")
    load_secrets(again)
    assert "API_TOKEN=abc123" in again.values["env"]


def test_a_moved_folder_of_runs_still_has_its_points(tmp_path: Path) -> None:
    study = make_study(tmp_path / "runs")
    point = add_point(study, 1, rate=10)
    (tmp_path / "runs").rename(tmp_path / "elsewhere")
    moved = find_study("train", tmp_path / "elsewhere")
    run = moved.run_of(moved.points[0])
    assert run is not None
    assert run.id == Path(point.run).name


def test_a_point_that_was_killed_has_failed(tmp_path: Path) -> None:
    study = make_study(tmp_path, where="local")
    point = add_point(study, 1, rate=10)
    Path(point.run, "attempts/1/end.json").unlink()
    about = Path(point.run, "run.json")
    here = {"scheduler": "local", "host": os.uname().nodename}
    about.write_text(json.dumps(json.loads(about.read_text()) | here))
    point.state = RUNNING
    assert PointPoller(study).refresh()
    assert (point.state, point.why) == (FAILED, "killed")


def test_looking_at_a_study_leaves_its_file_to_who_runs_it(tmp_path: Path) -> None:
    study = make_study(tmp_path, where="local", kind="strong")
    point = add_point(study, 1, rate=10)
    point.state = RUNNING
    study.save()
    before = (study.path / "study.json").read_bytes()
    assert analyse_now(study).rows[0].rate == pytest.approx(10)
    assert (study.path / "study.json").read_bytes() == before


def test_a_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    study = make_study(tmp_path, where="local")
    study.cwd = str(tmp_path / "gone")
    with pytest.raises(UsageError, match="gone cannot be entered"):
        prepare_resume(study)


def test_one_process_holds_a_study(tmp_path: Path) -> None:
    study = make_study(tmp_path)
    code = "import sys; from pathlib import Path; from allranks.observe.scaling.scaling_study import lock_study\n"
    code += "with lock_study(Path(sys.argv[1])): print('held')"
    words = [sys.executable, "-c", code, str(study.path)]
    with lock_study(study.path):
        other = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert f"{study.id} is in use by process {os.getpid()} on " in other.stderr
    later = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert later.stdout == "held\n"


def test_a_file_system_without_locks_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.lockf", refuse)
    with lock_study(make_study(tmp_path).path):
        pass


def test_the_first_error_is_the_reason(tmp_path: Path) -> None:
    study = make_study(tmp_path, where="local")
    point = add_point(study, 1, rate=10)
    attempt = Path(point.run, "attempts/1")
    (attempt / "end.json").write_text('{"exit_code": 1, "outcome": "failed"}')
    (attempt / "failures").mkdir()
    trace = "Traceback (most recent call last):\n  File x\nValueError: bad \x1b[1mbatch\n"
    failure = {"rank": 1, "exit_code": 1, "time": "1", "traceback": trace}
    (attempt / "failures/rank-00001.json").write_text(json.dumps(failure))
    point.state = RUNNING
    PointPoller(study).refresh()
    assert point.why == "rank 1: ValueError: bad batch"


def test_a_job_that_slurm_never_knew_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr("allranks.observe.scaling.point_states.run_statuses", _unknown)
    study = make_study(tmp_path)
    point = add_point(study, 1, rate=10)
    Path(point.run, "attempts/1/end.json").unlink()
    point.state, point.job_id = RUNNING, "77"
    looker = PointPoller(study)
    for clock[0] in (0.0, 60.0, 119.0):
        assert not looker.refresh()
    clock[0] = 121.0
    assert looker.refresh()
    assert point.state == FAILED


def _unknown(runs: list[Run]) -> list[RunStatus]:
    return [RunStatus(run, JobState.UNKNOWN) for run in runs]


def test_words_of_srun_are_the_reason_where_no_rank_began(tmp_path: Path) -> None:
    study = make_study(tmp_path, where="allocation")
    point = add_point(study, 1, rate=10)
    Path(point.run, "attempts/1/end.json").write_text('{"exit_code": 1}')
    told = "srun: error: Unable to create \x1b[1mstep\nallranks: no rank has begun\n"
    Path(point.run, "console.log").write_text(told)
    point.state = RUNNING
    PointPoller(study).refresh()
    assert point.why == "exit code 1: srun: error: Unable to create step"


@pytest.mark.parametrize("lost", ["metrics.jsonl", "run.json"])
def test_a_point_that_is_done_and_tells_nothing_is_run_again(lost: str, tmp_path: Path) -> None:
    study = make_study(tmp_path, where="local", kind="weak")
    add_point(study, 1, rate=10)
    Path(add_point(study, 2, rate=10).run, lost).unlink()
    prepare_resume(study)
    assert [point.state for point in Study.open(study.path).points] == [DONE, WAITING]


@pytest.mark.parametrize(
    "content", ['{"axis_name": "nodes"}', '{"points": [7]}', '{"points": 1}', "[]"]
)
def test_a_file_that_is_no_study_is_told(content: str, tmp_path: Path) -> None:
    folder = tmp_path / "studies/odd-20260101-100000"
    folder.mkdir(parents=True)
    (folder / "study.json").write_text(content)
    with pytest.raises(RunNotFoundError, match="is not a scaling study"):
        find_study("last", tmp_path)


def test_the_job_file_says_where_studies_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ALLRANKS_RUNS", raising=False)
    monkeypatch.chdir(tmp_path)
    assert default_root() == tmp_path / "runs"
    (tmp_path / "allranks.toml").write_text('runs = "my runs"\n')
    assert default_root() == tmp_path / "my runs"


def test_points_of_unknown_keys_are_read(tmp_path: Path) -> None:
    study = make_study(tmp_path)
    study.points = [Point(1)]
    study.save()
    file = study.path / "study.json"
    content = json.loads(file.read_text())
    content["points"][0]["colour"] = "blue"
    file.write_text(json.dumps(content | {"later": 1}))
    assert Study.open(study.path).points == [Point(1)]


def _begun_elsewhere(tmp_path: Path) -> tuple[Study, Point]:
    """A point on another machine, with no sign of life for an hour."""
    study = make_study(tmp_path, where="local")
    point = add_point(study, 1, rate=10)
    Path(point.run, "attempts/1/end.json").unlink()
    about = Path(point.run, "run.json")
    there = {"scheduler": "local", "host": "node77", "pid": 1}
    about.write_text(json.dumps(json.loads(about.read_text()) | there))
    for path in Path(point.run).rglob("*"):
        os.utime(path, (time.time() - 3600,) * 2)
    point.state = RUNNING
    return study, point


def test_a_point_on_another_machine_is_not_run_twice(tmp_path: Path) -> None:
    study, point = _begun_elsewhere(tmp_path)
    analyse_now(study)
    assert (point.state, point.why) == (
        RUNNING, "it was started on node77; only that machine knows its state"
    )  # fmt: skip
    with pytest.raises(JobError, match=r"may be under way.*node77") as told:
        prepare_resume(study)
    assert f"allranks scale --resume {study.path}" in str(told.value)
    Path(point.run).rename(tmp_path / "away")
    prepare_resume(study)
    assert point.state == WAITING


def test_a_point_that_never_began_has_failed(tmp_path: Path) -> None:
    study, point = _begun_elsewhere(tmp_path)
    shutil.rmtree(Path(point.run, "attempts"))
    PointPoller(study).refresh()
    assert (point.state, point.why) == (FAILED, "nothing was started")


def test_the_newest_of_several_outputs_has_the_last_words(tmp_path: Path) -> None:
    study = make_study(tmp_path)
    point = add_point(study, 1, rate=10)
    Path(point.run, "attempts/1/end.json").write_text('{"exit_code": 1}')
    jobs = ("12", "9", "10", "11")
    for moment, job in enumerate(jobs * 2):
        path = Path(point.run, f"slurm-{job}.out")
        path.write_text(f"error: of job {job}\n")
        os.utime(path, (1e9 + moment, 1e9 + moment))
        point.state = RUNNING
        PointPoller(study).refresh()
        assert point.why == f"exit code 1: error: of job {job}"


def test_a_folder_is_found_whatever_the_job_file_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ALLRANKS_RUNS", raising=False)
    monkeypatch.chdir(tmp_path)
    study = make_study(tmp_path / "3")
    (tmp_path / "allranks.toml").write_text("runs = 3\n")  # as `run` takes it
    assert find_study("train").path == study.path
    for fault in ("bogus = 3\n", "runs = true\n"):
        (tmp_path / "allranks.toml").write_text(fault)
        assert find_study(str(study.path)).path == study.path
        with pytest.raises(UsageError):
            find_study("train")
