"""The job script of a run that is resumed with other limits."""

from __future__ import annotations

import pytest

from allranks.errors import UsageError
from allranks.schedulers.resuming import changed_script

SCRIPT = """#!/bin/bash
#SBATCH --time=01:00:00
policy=(--requeue --max-attempts=100 --max-fruitless=3 --restarts=0)
echo "--max-attempts=100"
"""


def test_only_what_was_asked_for_changes() -> None:
    assert changed_script(SCRIPT, {"max_attempts": None, "time": None}) == SCRIPT
    changed = changed_script(SCRIPT, {"max_attempts": 7, "max_fruitless": None, "time": 7200})
    assert changed.splitlines()[1:] == [
        "#SBATCH --time=02:00:00",
        "policy=(--requeue --max-attempts=7 --max-fruitless=3 --restarts=0)",
        'echo "--max-attempts=100"',
    ]


def test_a_script_that_does_not_go_on_has_no_such_limits() -> None:
    with pytest.raises(UsageError, match="--requeue"):
        changed_script("#!/bin/bash\n", {"max_attempts": 7})
