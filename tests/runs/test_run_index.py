"""Naming a run: by name, folder, job id, last."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from run_files import as_nobody

from allranks.errors import RunNotFoundError, UsageError
from allranks.runs import Run, find_run, list_runs
from allranks.runs.run_index import index_file, read_index
from allranks.runs.run_lookup import find_task


def fake(root: Path, name: str, stamp: str, job_ids: str = "[]") -> Path:
    path = root / f"{name}-{stamp}"
    path.mkdir(parents=True)
    (path / "run.json").write_text(f'{{"name": "{name}", "job_ids": {job_ids}}}')
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def test_newest_of_a_name(root: Path) -> None:
    fake(root, "train", "20260101-000000")
    newest = fake(root, "train", "20260102-000000-10")
    fake(root, "train", "20260102-000000-9")
    fake(root, "train", "20260102-000000")
    assert find_run("train").path == newest


def test_full_id_and_unique_prefix(root: Path) -> None:
    old = fake(root, "train", "20260101-000000")
    new = fake(root, "train", "20260102-000000")
    fake(root, "eval", "20260103-000000")
    assert find_run(old.name).path == old
    assert find_run("tr").path == new
    assert find_run("train-20260101").path == old


def test_ambiguous_prefix_names_them(root: Path) -> None:
    fake(root, "train-a", "20260101-000000")
    fake(root, "train-b", "20260101-000000")
    with pytest.raises(RunNotFoundError, match="train-a, train-b"):
        find_run("train")


def test_last(root: Path) -> None:
    with pytest.raises(RunNotFoundError, match="no run yet"):
        find_run("last")
    fake(root, "z", "20260101-000000")
    newest = fake(root, "a", "20260301-000000")
    assert find_run("last").path == newest


def test_folder_and_below(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fake(root, "train", "20260101-000000")
    (path / "attempts" / "1" / "ranks").mkdir(parents=True)
    assert find_run(str(path)).path == path
    assert find_run(str(path / "attempts" / "1" / "ranks")).path == path
    monkeypatch.chdir(path)
    assert find_run("./attempts").path == path
    with pytest.raises(RunNotFoundError, match="no folder"):
        find_run("./nothing")


@pytest.mark.parametrize("asked", ["12", "12_3", "12+1", "12.batch", "12_3.0"])
def test_job_ids(root: Path, asked: str) -> None:
    path = fake(root, "train", "20260101-000000", '["11", "12"]')
    assert find_run(asked).path == path


def test_array_task_by_its_array(root: Path) -> None:
    path = fake(root, "train", "20260101-000000", '["12_3"]')
    assert find_run("12").path == path
    assert find_run("12_3").path == path


def test_unknown_job_id(root: Path) -> None:
    with pytest.raises(RunNotFoundError, match="job id 99"):
        find_run("99")


def test_a_name_of_digits(root: Path) -> None:
    path = fake(root, "2024", "20260101-000000")
    assert find_run("2024").path == path


def test_nearest_names(root: Path) -> None:
    fake(root, "pretrain", "20260101-000000")
    with pytest.raises(RunNotFoundError, match=r"Did you mean pretrain\?"):
        find_run("pretrian")


def test_index_finds_runs_elsewhere(make_run: Callable[..., Run], tmp_path: Path) -> None:
    run = make_run("far", root=tmp_path / "elsewhere").add_job_id("77")
    assert find_run("far").path == find_run("77").path == run.path
    assert [one.path for one in list_runs()] == [run.path]


def test_index_tolerates_garbage_and_deleted(make_run: Callable[..., Run], tmp_path: Path) -> None:
    kept = make_run("kept", root=tmp_path / "a").add_job_id("5")
    gone = make_run("gone", root=tmp_path / "a").add_job_id("5")
    gone.remove()
    with open(index_file(), "ab") as file:
        file.write(b'\xff\xfe\n{"path": 3}\n[]\n{"path": "relative", "name": "x"}\n{"path": "/x')
    later = make_run("later", root=tmp_path / "a")
    assert {line.name for line in read_index()} == {"kept", "gone", "later"}
    assert find_run("5").path == kept.path
    assert {one.path for one in list_runs()} == {kept.path, later.path}
    with pytest.raises(RunNotFoundError):
        find_run("gone")


def test_unwritable_state_stops_nothing(
    make_run: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    run = make_run("train")
    assert find_run("train").path == run.path


def test_renamed_folder_is_found(make_run: Callable[..., Run]) -> None:
    run = make_run("train")
    run.path.rename(run.path.parent / "best")
    assert find_run("best").path.name == "best"
    assert find_run("last").path.name == "best"


def test_limit(root: Path) -> None:
    for day in range(1, 10):
        fake(root, "train", f"2026010{day}-000000")
    assert [run.id[-15:-7] for run in list_runs(limit=2)] == ["20260109", "20260108"]


def test_ten_thousand_runs(root: Path) -> None:
    for number in range(10_000):
        (root / f"r{number}-20260101-000000").mkdir(parents=True)
    (root / "r9999-20260101-000000" / "run.json").write_text("{}")
    began = time.monotonic()
    assert find_run("r9999").id == "r9999-20260101-000000"
    assert time.monotonic() - began < 5


def test_runs_that_others_keep_to_themselves(open_folder: Path) -> None:
    """They are passed over in a list, and said to be closed where they are named."""
    mine = fake(open_folder, "train", "20260101-000000")
    closed = fake(open_folder, "train", "20260102-000000")
    renamed = fake(open_folder, "renamed", "x")
    for path in (closed, renamed):
        path.chmod(0)
    with as_nobody():
        assert [run.path for run in list_runs(open_folder)] == [mine]
        assert find_run("train", open_folder).path == mine
        for name in (closed, closed / "attempts"):
            with pytest.raises(RunNotFoundError, match="cannot be read: Permission denied"):
                find_run(str(name))
        with pytest.raises(RunNotFoundError, match="cannot be read: Permission denied"):
            Run.open(closed)
        with pytest.raises(RunNotFoundError, match="cannot be read: Permission denied"):
            find_run(closed.name, open_folder)


def test_which_task_of_an_array(root: Path) -> None:
    path = fake(root, "sweep", "20260101-000000", '["4711"]')
    (path / "run.json").write_text('{"name": "sweep", "array": "0-3", "job_ids": ["4711"]}')
    assert find_task("sweep") == (Run(path), None)
    assert find_task("4711_2") == (Run(path), "2")  # one that waits can be watched
    assert find_task("sweep", "03") == (Run(path), "3")
    (path / "attempts" / "1").mkdir(parents=True)
    (path / "attempts" / "1" / "attempt.json").write_text('{"array_task": "2"}')
    assert find_task("4711_2") == find_task("sweep", "2") == (Run(path), "2")
    for wrong in ("10", "x", "-1"):
        with pytest.raises(UsageError, match=rf"sweep-.* has no task {wrong}. It has 0-3"):
            find_task("4711_2", wrong)
    about = (path / "run.json").read_text()
    (path / "run.json").write_text(about.replace("0-3", "1-7:3,12,20-22%4"))
    for task in ("1", "4", "7", "12", "20", "22"):
        assert find_task("sweep", task)[1] == task
    for task in ("5", "11", "23"):
        with pytest.raises(UsageError, match="has no task"):
            find_task("sweep", task)
    fake(root, "train", "20260102-000000")
    with pytest.raises(UsageError, match="is no job array"):
        find_task("train", "0")
