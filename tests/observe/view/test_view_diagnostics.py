"""What is said of a run: its failure, and mistakes in its job script."""

from __future__ import annotations

import json
from pathlib import Path

from allranks.observe.check.signal_check import RankSignals, SignalCheckResult, save_result
from allranks.observe.view.diagnostics import diagnostics
from allranks.runs import Run
from view_rig import make_array, make_run

WRONG = """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
srun torchrun --nnodes=2 --nproc-per-node=4 train.py
"""


def test_our_own_scripts_are_clean(tmp_path: Path) -> None:
    assert diagnostics(make_run(tmp_path, ranks=8, attempts=2)) == []


def test_the_failure_comes_first(tmp_path: Path) -> None:
    run = make_run(tmp_path, failed=True, job_id="3")
    (run.path / "job.sh").write_text(WRONG)
    found = diagnostics(run)
    assert (found[0].source, found[0].severity) == ("run", "error")
    assert found[0].title == "Rank 2 failed first on node1: exit code 1"
    assert found[0].message.startswith("torch.OutOfMemoryError: CUDA out of memory")
    assert run.id in found[0].help
    lint = found[1:]
    assert lint
    assert {each.source for each in lint} == {"lint"}
    assert {each.severity for each in lint} <= {"error", "warning"}
    assert all(each.rule.startswith("AR") and each.line for each in lint)
    assert [each.severity for each in lint] == sorted(each.severity for each in lint)


def test_what_stands_below_an_error_is_not_the_error(tmp_path: Path) -> None:
    run = make_run(tmp_path, failed=True)
    record = {
        "exit_code": 137,
        "signal": 9,
        "traceback": 'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\n'
        "RuntimeError: CUDA error: device-side assert triggered\n"
        "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
    }
    failures = run.path / "attempts" / "1" / "failures"
    (failures / "rank-00002.json").write_text(json.dumps(record))
    (found,) = diagnostics(run)
    assert found.title == (
        "Rank 2 failed first: killed by SIGKILL, perhaps out of memory (exit code 137)"
    )
    assert found.message == "RuntimeError: CUDA error: device-side assert triggered"


def test_a_script_that_is_none(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    (run.path / "job.sh").write_bytes(b"\xff\xfe\x00 ${ ((( <<EOF\n")
    assert all(each.source == "lint" for each in diagnostics(run))
    (run.path / "job.sh").unlink()
    assert diagnostics(run) == []


def test_what_a_check_found_stands_with_its_run(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    heard = RankSignals(0, "node1", 100.0, 160.0, {"SIGUSR1": 130.0}, 2)
    save_result(SignalCheckResult("job 7", "srun", ["SIGUSR1"], [heard]), run)
    (found,) = diagnostics(run)
    assert (found.source, found.severity, found.title) == (
        "check",
        "note",
        "allranks check --signal",
    )
    assert found.message == "Every signal reached the rank in job 7."
    save_result(
        SignalCheckResult(
            "job 7", "srun", ["SIGUSR1"], [heard, RankSignals(1, "node2", 99.0, 160.0)]
        ),
        run,
    )
    (found,) = diagnostics(run)
    assert found.severity == "warning"
    assert found.message.startswith(
        "SIGUSR1 did not reach rank 1. The ranks know when the job ends"
    )


def test_an_end_without_a_failed_rank(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    (run.path / "attempts" / "1" / "end.json").write_text(
        '{"exit_code": 1, "outcome": "node lost", "reason": "node2 is gone.", "next": "requeue"}'
    )
    (found,) = diagnostics(run)
    assert (found.severity, found.title) == ("warning", "Attempt 1: node lost")
    assert found.message == "node2 is gone."


def test_a_run_that_has_not_begun(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    assert diagnostics(Run(tmp_path)) == []


def test_of_an_array_every_task_has_its_say(tmp_path: Path) -> None:
    run = make_array(tmp_path, {"0": "failed", "1": "finished", "2": "failed", "3": ""})
    (tmp_path / "attempts" / "1" / "failures").mkdir()
    record = '{"rank": 1, "exit_code": 9, "traceback": "ValueError: bad"}'
    (tmp_path / "attempts" / "1" / "failures" / "rank-00001.json").write_text(record)
    end = '{"exit_code": 1, "outcome": "node lost", "reason": "node3 is gone."}'
    (tmp_path / "attempts" / "3" / "end.json").write_text(end)
    assert [each.title for each in diagnostics(run)] == [
        "Task 0: Rank 1 failed first: exit code 9",
        "Task 2: Attempt 3: node lost",
    ]
