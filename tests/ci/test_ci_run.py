"""What ``.ci/run`` makes of failing steps and of too little time, with a ``make`` that only reports."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from command_rig import ROOT

Ci = Callable[..., "subprocess.CompletedProcess[str]"]

MAKE = """#!/bin/sh
echo "$1" >> "$MADE"
echo "FLAKY tests/test_it.py::test_$1"
echo "===== 3 passed, 1 flaky in 1.50s ====="
case " $FAILING " in *" $1 "*) exit 2;; esac
"""
TIMEOUT = """#!/bin/sh
shift 3
case " $ENDLESS " in *" $2 "*) "$@"; exit 124;; esac
exec "$@"
"""


@pytest.fixture
def ci(tmp_path: Path, clean_env: dict[str, str]) -> Ci:
    programs, made = tmp_path / "bin", tmp_path / "made"
    programs.mkdir()
    for name, text in {"make": MAKE, "timeout": TIMEOUT}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")

    def run(**changes: str) -> subprocess.CompletedProcess[str]:
        env = {
            **clean_env,
            "MADE": str(made),
            **changes,
        }
        env["PATH"] = f"{programs}:{env['PATH']}"
        made.write_text("")
        command = [tmp_path / ".ci" / "run"]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        done.args = made.read_text().split()
        return done

    return run


def test_all_steps_pass(ci: Ci) -> None:
    done = ci(CI_MINUTES="200")
    assert done.returncode == 0, done.stdout
    assert done.args == [
        "test",
        "check",
        "docs",
        "test-soak",
        "test-frameworks",
        "test-slurm-versions",
    ]
    assert done.stdout.count("passed in") == 6
    assert "== make test\nFLAKY tests/test_it.py::test_test\n===== 3 passed, 1 flaky" in done.stdout


def test_a_leg_that_does_not_fit_is_not_started_and_named(ci: Ci) -> None:
    done = ci(CI_MINUTES="54")
    assert "make test-frameworks       not started: needs 55 minutes, 5" in done.stdout
    assert "make test-slurm-versions   passed" in done.stdout
    assert done.returncode == 0


def test_a_step_that_runs_out_of_time_is_red(ci: Ci) -> None:
    done = ci(ENDLESS="test-soak")
    assert done.returncode == 1
    assert "make test-soak             FAILED: out of time" in done.stdout


@pytest.mark.parametrize("step", ["test", "check", "docs"])
def test_a_failing_step_is_red_and_starts_no_leg(ci: Ci, step: str) -> None:
    done = ci(FAILING=step)
    assert done.returncode == 1
    assert done.args == ["test", "check", "docs"]
    assert done.stdout.count("not started: a step before it failed") == 3


def test_a_failing_leg_is_red(ci: Ci) -> None:
    done = ci(FAILING="test-soak")
    assert done.returncode == 1
    assert "make test-soak             FAILED with exit code 2" in done.stdout
