"""Run folders: made once each, readable after a kill at any moment."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import pytest
from run_files import stamp, write_failure, write_log

from allranks.errors import RunNotFoundError
from allranks.runs import Run
from allranks.runs.run_folder import safe_name


def test_create_writes_the_contract(make_run: Callable[..., Run]) -> None:
    run = make_run("train")
    about = json.loads((run.path / "run.json").read_text())
    assert set(about) == {"name", "id", "created", "scheduler", "job_ids", "cwd", "command"}
    assert re.fullmatch(r"train-\d{8}-\d{6}", run.path.name)
    assert about["id"] == run.id == run.path.name
    assert (run.scheduler, run.cwd, run.command) == ("slurm", "/w", ["python", "t.py"])
    kept = Run.create(
        run.path.parent, "x", scheduler="", cwd="", command=["t.py", "--token", "abc"]
    )
    assert kept.command == ["t.py", "--token", "[redacted]"]
    assert run.created is not None
    assert abs((datetime.now(timezone.utc) - run.created).total_seconds()) < 60


def test_many_at_once_get_a_folder_each(make_run: Callable[..., Run]) -> None:
    made: list[Run] = []
    threads = [threading.Thread(target=lambda: made.append(make_run("same"))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({run.path for run in made}) == 16


def test_runs_folder_is_out_of_git(make_run: Callable[..., Run]) -> None:
    assert (make_run().path.parent / ".gitignore").read_text() == "*\n"


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("train", "train"),
        ("my run/α β", "my-run-α-β"),
        ("../../etc", "etc"),
        ("lr=1e-3,bs=8", "lr=1e-3-bs=8"),
        ("...", "run"),
        ("", "run"),
        ("a\nb\0c", "a-b-c"),
        ("é" * 200, "é" * 50),
    ],
)
def test_names_suit_file_systems(name: str, safe: str) -> None:
    assert safe_name(name) == safe


def test_original_name_is_kept(make_run: Callable[..., Run]) -> None:
    assert Run.open(make_run("my run/1").path).name == "my run/1"


def test_job_ids_are_added_once(make_run: Callable[..., Run]) -> None:
    run = make_run().add_job_id("12").add_job_id("12").add_job_id("13")
    assert run.job_ids == ["12", "13"]


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"name": 3, "job_ids": "x"}'])
def test_broken_run_json_is_tolerated(make_run: Callable[..., Run], content: str) -> None:
    run = make_run("train")
    (run.path / "run.json").write_text(content)
    again = Run.open(run.path)
    assert again.name in ("train", "3")
    assert again.job_ids == []
    assert again.created is not None
    assert again.add_job_id("5").job_ids == ["5"]


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunNotFoundError, match="not a run folder"):
        Run.open(tmp_path)


def test_attempts_in_order_of_number(make_run: Callable[..., Run]) -> None:
    run = make_run()
    for restart in range(11):
        run.new_attempt(job_id="7", restart=restart, launcher="srun", hosts=["n1", "n2"])
    (run.path / "attempts" / "junk").mkdir()
    numbers = [attempt.number for attempt in run.attempts]
    assert numbers == list(range(1, 12))
    last = run.last_attempt
    assert last is not None
    assert (last.restart, last.job_id, last.hosts) == (10, "7", ["n1", "n2"])
    assert last.start is not None
    assert last.exit_code is None


def test_end_of_an_attempt(make_run: Callable[..., Run]) -> None:
    attempt = make_run().new_attempt().finish(3)
    assert attempt.exit_code == 3
    assert attempt.end is not None


def test_attempt_without_files(make_run: Callable[..., Run]) -> None:
    run = make_run()
    (run.path / "attempts" / "1").mkdir(parents=True)
    (attempt,) = run.attempts
    assert (attempt.number, attempt.hosts, attempt.start, attempt.exit_code) == (1, [], None, None)
    assert attempt.ranks() == attempt.failures() == []
    assert attempt.first_failure() is None


def test_ranks_and_first_failure(make_run: Callable[..., Run]) -> None:
    attempt = make_run().new_attempt()
    write_log(attempt.path, 0, [(1, "o", "a")])
    write_log(attempt.path, 1, [(1, "o", "a")])
    (attempt.path / "ranks" / "rank-00001.json").write_text('{"rank": 1, "host": "n1", "pid": 9}')
    write_failure(attempt.path, 0, 9)
    write_failure(attempt.path, 1, 5, traceback="Boom", signal=None)
    (attempt.path / "failures" / "rank-00002.json").write_text('{"rank": 2, "ho')
    assert [(rank.rank, rank.host, rank.pid) for rank in attempt.ranks()] == [
        (0, "", None),
        (1, "n1", 9),
    ]
    assert [failure.rank for failure in attempt.failures()] == [1, 0, 2]
    first = attempt.first_failure()
    assert first is not None
    assert (first.rank, first.traceback, first.time) == (1, "Boom", stamp(5))
