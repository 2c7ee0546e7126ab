"""The job script of a run that is resumed with other limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from allranks.errors import UsageError
from allranks.runs.atomic_files import write_json
from allranks.runs.run_folder import Run
from allranks.schedulers.resume_job import changed_script, last_attempt_note

SCRIPT = """#!/bin/bash
#SBATCH --time=01:00:00
policy=(--requeue --max-attempts=100 --max-no-progress=3 --restarts=0)
echo "--max-attempts=100"
"""


def test_only_what_was_asked_for_changes() -> None:
    assert changed_script(SCRIPT, {"max_attempts": None, "time": None}) == SCRIPT
    changed = changed_script(SCRIPT, {"max_attempts": 7, "max_no_progress": None, "time": 7200})
    assert changed.splitlines()[1:] == [
        "#SBATCH --time=02:00:00",
        "policy=(--requeue --max-attempts=7 --max-no-progress=3 --restarts=0)",
        'echo "--max-attempts=100"',
    ]


def test_a_script_that_does_not_go_on_has_no_such_limits() -> None:
    with pytest.raises(UsageError, match="--requeue"):
        changed_script("#!/bin/bash\n", {"max_attempts": 7})


def test_a_script_without_a_time_limit_gets_one() -> None:
    text = SCRIPT.replace("#SBATCH --time=01:00:00", "#SBATCH --nodes=1")
    lines = changed_script(text, {"time": 7200}).splitlines()
    assert lines[1:3] == ["#SBATCH --time=02:00:00", "#SBATCH --nodes=1"]
    assert changed_script(text, {"time": 7200}).count("--time") == 1
    with pytest.raises(UsageError, match="--time"):
        changed_script("#!/bin/bash\n", {"time": 7200})


@pytest.mark.parametrize(("most", "told"), [(2, True), (3, True), (4, False)])
def test_the_last_attempt_that_is_allowed_is_told_when_it_is_submitted(
    tmp_path: Path, most: int, told: bool
) -> None:
    write_json(tmp_path / "run.json", {"name": "train"})
    (tmp_path / "job.sh").write_text(SCRIPT.replace("=100 ", f"={most} "))
    for number in (1, 2):
        (tmp_path / "attempts" / str(number)).mkdir(parents=True)
    note = last_attempt_note(Run.open(tmp_path))
    assert (f"It is attempt 3, and --max-attempts is {most}" in note) is told
    assert ("allranks resume --max-attempts" in note) is told
