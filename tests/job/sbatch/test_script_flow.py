"""A job script from its start to its end: attempts, the agent, exit codes, signals, threads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from script_rig import NOTE, Stage, Told, plan_of

from allranks.job.sbatch import render

RAN = ("-m", "allranks.runtime.agent", "rank", "--", "python", "train.py")


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def run(stage: Stage, fields: dict[str, Any] | None = None, **env: str) -> Told:
    plan = plan_of(**(fields or {}))
    return stage.run(render(plan), plan, **env)


def test_attempts_are_counted_and_recorded(stage: Stage) -> None:
    assert (run(stage).code, run(stage, SLURM_RESTART_COUNT="1").code) == (0, 0)
    attempts = stage.work / "runs" / "train-7" / "attempts"
    first, second = (json.loads((attempts / n / "attempt.json").read_text()) for n in ("1", "2"))
    assert (first["attempt"], first["restart"], first["job_id"]) == (1, 0, "7")
    assert (second["attempt"], second["restart"], second["launcher"]) == (2, 1, "srun")
    assert first["hosts"] == ["n[1-2]"]
    assert json.loads((attempts / "2" / "end.json").read_text())["exit_code"] == 0
    assert (attempts / "1" / "ranks").is_dir()


PLACES: dict[str, dict[str, Any]] = {
    "plain": {},
    "container": {"container": "i.sif", "container_setup": ["echo welcome"]},
    "pyxis": {"container": "i.sif", "container_runtime": "pyxis"},
    "set up in tasks": {"modules": ["a"], "setup_on": "node"},
    "fork": {"launcher": "fork"},
}


@pytest.mark.parametrize("place", PLACES)
def test_the_exit_code_is_the_first_failures(stage: Stage, place: str) -> None:
    """srun's own is the highest of all tasks'; the agent's summary knows which rank was first."""
    told = run(stage, PLACES[place], CODE="137", FIRST="7")
    assert told.code == 7, told.output
    attempt = stage.work / "runs" / "train-7" / "attempts" / "1"
    assert json.loads((attempt / "end.json").read_text())["exit_code"] == 7
    # Where only tasks have the job's own, the batch script's serves.
    python = "python3" if place in ("pyxis", "set up in tasks") else "python"
    assert told.of(python)[-1] == ("-m", "allranks.runtime.agent", "summary", str(attempt), "137")


@pytest.mark.parametrize("env", [{}, {"NO_AGENT": "1"}])
@pytest.mark.parametrize("place", sorted(set(PLACES) - {"fork"}))
def test_the_exit_code_survives_without_a_record(
    stage: Stage, place: str, env: dict[str, str]
) -> None:
    assert run(stage, PLACES[place], CODE="9", **env).code == 9


def test_the_agent_stands_around_each_rank(stage: Stage) -> None:
    told = run(stage, {"nprocs": 2})
    assert told.of("python").count(RAN) == 2
    assert told.env["ALLRANKS_LAUNCHER"] == "srun"
    assert told.env["PYTHONPATH"] == f"{told.env['ALLRANKS_RUN_DIR']}/lib"
    assert run(stage, PYTHONPATH="/mine").env["PYTHONPATH"].endswith("/lib:/mine")


@pytest.mark.parametrize(
    "fields",
    [{}, {"container": "i.sif"}, {"container": "i.sif", "container_runtime": "pyxis"},
     {"modules": ["a"], "setup_on": "node"}],
)  # fmt: skip
def test_where_allranks_is_missing_the_job_runs_without_it(
    stage: Stage, fields: dict[str, Any]
) -> None:
    told = run(stage, fields, NO_AGENT="1")
    assert told.code == 0, told.output
    assert RAN not in told.of("python")
    assert ("train.py",) in told.of("python")


def test_mpirun_without_the_agent_still_names_the_ranks(stage: Stage) -> None:
    stage.fake(
        "mpirun",
        NOTE + 'if [[ $1 == -n ]]; then shift 4; PMI_RANK=3 MPI_LOCALRANKID=1 exec "$@"; fi\n',
    )
    fields = {"launcher": "mpirun", "nodes": 2, "nprocs": 4, "port": 31234, "interface": "lo"}
    for more, env in (({"agent": False}, {}), ({}, {"NO_AGENT": "1"})):
        told = run(stage, {**fields, **more}, **env)
        assert told.code == 0, told.output
        assert [call[:3] for call in told.of("rank")] == [("3", "1", "1")]


@pytest.mark.parametrize(
    ("said", "start"), [("mpirun (Open MPI) 4.1", "-np"), ("HYDRA build details", "-n")]
)
def test_mpirun_is_asked_whose_it_is(stage: Stage, said: str, start: str) -> None:
    told = run(stage, {"launcher": "mpirun", "nprocs": 2, "env": {"MINE": "1"}}, MPI_VERSION=said)
    call = told.of("mpirun")[-1]
    assert call[:2] == (start, "2")
    assert ("MINE" in call) is (start == "-np")
    assert call[-6:] == ("allranks.runtime.agent", "rank", "--peers", "--", "python", "train.py")


def signalling(handler: str, then: str) -> str:
    """An srun that gets the signal from its job as soon as it runs."""
    return f"#!/bin/bash\ntrap '{handler}' USR1\nkill -USR1 $PPID\nsleep 0.5 & wait $!\n{then}\n"


@pytest.mark.parametrize("signal", ["B:USR1@60", "B:SIGUSR1", "RB:USR1@60", "B:10@60"])
def test_a_signal_to_the_batch_shell_reaches_the_tasks(stage: Stage, signal: str) -> None:
    stage.fake("srun", signalling("exit 9", "exit 1"))
    assert run(stage, {"signal": signal, "agent": False}).code == 9


@pytest.mark.parametrize("code", [0, 4])
def test_a_job_that_lives_through_the_signal_keeps_its_exit_code(stage: Stage, code: int) -> None:
    stage.fake("srun", signalling(":", f"sleep 0.2; exit {code}"))
    assert run(stage, {"signal": "B:USR1@60", "agent": False}).code == code


def test_a_signal_to_the_steps_needs_no_trap(stage: Stage) -> None:
    assert "trap" not in render(plan_of(signal="USR1@60"))


@pytest.mark.parametrize(
    ("fields", "env", "threads"),
    [
        ({"cpus_per_task": 6}, {}, "6"),
        ({"cpus_per_task": 8, "launcher": "fork", "nprocs": 4}, {}, "2"),
        ({}, {"SLURM_CPUS_PER_TASK": "5"}, "5"),
        ({}, {}, "1"),
        ({"launcher": "fork", "nprocs": 4}, {"SLURM_CPUS_PER_TASK": "8"}, "2"),
        ({"launcher": "fork", "nprocs": 4}, {}, "1"),
        ({"env": {"OMP_NUM_THREADS": "3"}, "cpus_per_task": 8}, {}, "3"),
    ],
)
def test_threads_follow_the_cpus(
    stage: Stage, fields: dict[str, Any], env: dict[str, str], threads: str
) -> None:
    assert run(stage, fields, **env).env["OMP_NUM_THREADS"] == threads


def test_the_steps_get_their_cpus_on_every_slurm(stage: Stage) -> None:
    assert "--cpus-per-task=6" in run(stage, {"cpus_per_task": 6}).of("srun")[-1]


def test_a_failing_set_up_ends_the_job(stage: Stage) -> None:
    told = run(stage, {"venv": "nowhere"})
    assert told.code != 0
    assert told.of("python") == []


@pytest.mark.slurm
def test_script_and_submit_send_the_same_text(slurm: Any, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print()\n")
    words = [
        "--snapshot",
        "off",
        "--nprocs",
        "2",
        "--cpus-per-task",
        "1",
        "--memory",
        "50M",
        "--sbatch",
        "hold",
    ]
    done = slurm("submit", "--json", *words, "train.py", "--lr", "a b")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    printed = slurm("script", "--run-dir", told["folder"], *words, "train.py", "--lr", "a b").stdout
    sent = Path(told["folder"], "job.sh").read_text()
    slurm("cancel", told["job_id"])
    assert without_head(sent) == without_head(printed)


@pytest.mark.slurm
def test_a_folder_named_from_here_is_found_by_the_job(slurm: Any, tmp_path: Path) -> None:
    """sbatch and the script both change into it: a relative name would be taken twice."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "train.py").write_text("open('ran', 'w').close()\n")
    words = ["--chdir", "sub", "--no-agent", "--time", "1m", "--sbatch", "wait"]
    done = slurm("submit", *words, "train.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "sub" / "ran").exists()


def without_head(text: str) -> list[str]:
    """All but the comment that holds the command line."""
    return [line for line in text.splitlines() if not line.startswith("#   allranks ")]
