"""The attempts of a run as one story, and its goodput."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from allranks.runs.attempt import Attempt
from allranks.runs.attempt_history import (
    attempt_history,
    attempts_without_progress,
    goodput,
    task_history,
)
from allranks.runs.progress_file import AttemptProgress
from allranks.runs.run_folder import Run

EPOCH = 1_767_225_600  # 2026-01-01T00:00:00Z


def attempt(
    folder: Path, number: int, minutes: tuple[int, int], steps: tuple[int, int, int], **about: Any
) -> Attempt:
    """From minute to minute; from step to step, with the last checkpoint. The first minute is set-up."""
    path = folder / "attempts" / str(number)
    path.mkdir(parents=True)
    start, end = (f"2026-01-01T00:{minute:02}:00Z" for minute in minutes)
    (path / "attempt.json").write_text(json.dumps({"start": start, **about}))
    (path / "end.json").write_text(json.dumps({"end": end, "exit_code": 0, **about}))
    first, last, saved = steps
    began, ended = EPOCH + 60 * (minutes[0] + 1), EPOCH + 60 * minutes[1]
    progress = AttemptProgress(first, last, began, ended, saved)
    progress.write(path)
    content = json.loads((path / "progress.json").read_text()) | {"updated": ended}
    (path / "progress.json").write_text(json.dumps(content))
    return Attempt.open(path)


def test_time_counts_up_to_the_step_that_was_built_on(tmp_path: Path) -> None:
    entries = task_history(
        [
            attempt(tmp_path, 1, (0, 11), (0, 100, 80), outcome="timed out"),
            attempt(tmp_path, 2, (20, 31), (80, 130, 120), outcome="finished"),
        ]
    )
    assert [entry.useful for entry in entries] == [8 * 60, 10 * 60]  # 80 of 100 steps in 10 minutes
    assert [entry.seconds for entry in entries] == [11 * 60, 11 * 60]
    assert goodput(entries).share == 18 / 22
    assert [entry.made_progress for entry in entries] == [True, True]


def test_a_failed_end_counts_up_to_its_checkpoint(tmp_path: Path) -> None:
    (entry,) = task_history([attempt(tmp_path, 1, (0, 11), (0, 100, 50), outcome="failed")])
    assert entry.useful == 5 * 60


def test_attempts_without_a_newer_checkpoint_are_fruitless(tmp_path: Path) -> None:
    lives = [
        attempt(tmp_path, 1, (0, 2), (0, 10, 10), outcome="failed"),
        attempt(tmp_path, 2, (2, 4), (10, 15, 10), outcome="failed"),
        attempt(tmp_path, 3, (4, 6), (10, 15, 10), outcome="moved away"),
        attempt(tmp_path, 4, (6, 8), (10, 15, 10), outcome="failed"),
    ]
    assert attempts_without_progress(task_history(lives)) == 2  # one of them never began
    assert goodput([]).share is None


def test_steps_of_different_fits_are_not_compared(tmp_path: Path) -> None:
    """1000 steps, then a second training of 1000 steps in the same script."""

    def at(number: int, fit: int, steps: tuple[int, int, int | None]) -> Attempt:
        made = attempt(tmp_path, number, (0, 11), steps, outcome="failed")  # type: ignore[arg-type]
        path = made.path / "progress.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"fit": fit}))
        return Attempt.open(made.path)

    lives = [
        at(1, 1, (0, 900, 900)),
        at(2, 2, (0, 200, 200)),
        at(3, 2, (200, 450, 450)),
        at(4, 2, (450, 470, None)),
        at(5, 1, (1000, 1000, 1000)),  # it found the first one finished, and failed
    ]
    entries = task_history(lives)
    assert [entry.made_progress for entry in entries] == [True, True, True, False, False]
    assert attempts_without_progress(entries) == 2
    assert entries[0].useful == 10 * 60  # the second attempt went through all of it


def test_reaching_the_next_fit_is_progress_once(tmp_path: Path) -> None:
    lives = []
    for number in (1, 2):
        made = attempt(tmp_path, number, (0, 2), (0, 5, 0), outcome="failed")
        AttemptProgress(step=5, fit=2).write(made.path)
        lives.append(Attempt.open(made.path))
    assert [entry.made_progress for entry in task_history(lives)] == [True, False]


def test_an_attempt_without_an_end_runs_or_was_killed(tmp_path: Path) -> None:
    one = attempt(tmp_path, 1, (0, 2), (0, 10, 10))
    (one.path / "end.json").unlink()
    one = Attempt.open(one.path)
    assert [entry.outcome for entry in task_history([one])] == ["killed"]
    assert [entry.outcome for entry in task_history([one, one], None)] == ["killed", "unknown"]
    assert [entry.outcome for entry in task_history([one], running=True)] == ["running"]


def test_the_tasks_of_an_array_are_stories_of_their_own(tmp_path: Path) -> None:
    lives = [
        attempt(tmp_path, 1, (0, 2), (0, 10, 10), array_task="0", outcome="interrupted"),
        attempt(tmp_path, 2, (0, 2), (0, 4, 4), array_task="1", outcome="interrupted"),
        attempt(tmp_path, 3, (2, 4), (10, 20, 20), array_task="0", outcome="finished"),
    ]
    assert [entry.made_progress for entry in attempt_history(lives)] == [True, True, True]
    assert Run.open(tmp_path).finished is False


def test_jobs_that_a_script_submitted_belong_to_the_run(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"job_ids": ["12", "30"]}))
    (tmp_path / "resubmitted").write_text("15\n31\n")
    assert Run.open(tmp_path).job_ids == ["12", "15", "30", "31"]


def test_an_end_that_was_written_holds_while_slurm_still_says_running(tmp_path: Path) -> None:
    one = attempt(tmp_path, 1, (0, 11), (0, 100, 100), outcome="finished")
    (entry,) = task_history([one], running=True)
    assert (entry.outcome, entry.seconds) == ("finished", 11 * 60)


@pytest.mark.parametrize(
    ("odd", "read"),
    [
        ({"step": "7"}, AttemptProgress(step=7)),
        ({"step": None, "first_step": None, "total_steps": 9}, AttemptProgress(total_steps=9)),
        ({"fit": "a", "reason": 3, "outcome": [], "step": 1}, AttemptProgress(step=1)),
        ({"updated": float("nan"), "began": 1e300, "step": 10**400}, None),
        ({"updated": "now", "saved_step": [], "save_seconds": True}, None),
    ],
)
def test_odd_values_in_small_files_end_no_view(
    odd: dict[str, Any], read: AttemptProgress | None, tmp_path: Path
) -> None:
    made = attempt(tmp_path, 1, (0, 11), (0, 100, 50), outcome="failed")
    after = attempt(tmp_path, 2, (12, 20), (50, 100, 90))
    (made.path / "progress.json").write_text(json.dumps(odd))
    (made.path / "attempt.json").write_text('{"start": "2026-01-01T00:00:00", "hosts": 3}')
    assert made.progress == read
    entries = task_history([Attempt.open(made.path), after], running=True)
    assert [entry.seconds for entry in entries] == [11 * 60, 8 * 60], (
        "a stamp without a zone is UTC"
    )
    assert goodput(entries).allocated == 19 * 60
