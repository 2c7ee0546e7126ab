"""Where a study runs, and what its points are asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from allranks.errors import UsageError
from allranks.scaling.asking import Ask, choose_place, make_study, prepare_point
from allranks.scaling.sizes import choose_axis
from allranks.scaling.study import Study

PROCS, NODES = {"nprocs": "1,2"}, {"nodes": "1,2"}


@pytest.fixture(autouse=True)
def _no_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_STEP_ID", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print(1)\n")


@pytest.fixture
def sbatch(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "sbatch"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)


def _place(values: dict[str, str], place: str = "") -> str:
    return choose_place(choose_axis(values), place)


def test_without_slurm_all_is_here() -> None:
    assert _place(PROCS) == "local"
    assert _place({"gpus_per_node": "1,2"}) == "local"
    with pytest.raises(UsageError, match="no sbatch here"):
        _place(NODES)
    with pytest.raises(UsageError, match="--submit"):
        _place(PROCS, "submit")


@pytest.mark.usefixtures("sbatch")
def test_with_slurm_nodes_and_gpus_are_submitted() -> None:
    assert _place(NODES) == "slurm"
    assert _place({"gpus_per_node": "1,2"}) == "slurm"
    assert _place(PROCS) == "local"
    assert _place(PROCS, "submit") == "slurm"
    assert _place({"gpus_per_node": "1,2"}, "here") == "local"
    with pytest.raises(UsageError, match="--here"):
        _place(NODES, "here")


@pytest.mark.usefixtures("sbatch")
def test_an_allocation_around_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "4")
    assert _place(NODES) == "allocation"
    assert _place(NODES, "submit") == "slurm"


def _study(**more: object) -> Study:
    values = {"nprocs": "1,2", "script": "train.py", "args": ("--b", "{share:8}"), **more}
    ask = Ask(kind="strong", steps=30, repeat=2)
    return make_study(values, ask, config=None, command="allranks scale", say=lambda _: None)


def test_points_differ_in_size_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    study = _study(env=("A={ranks}",))
    assert [(point.size, point.repeat) for point in study.points] == [
        (1, 1), (2, 1), (1, 2), (2, 2),
    ]  # fmt: skip
    plan = prepare_point(study, study.points[3])
    assert plan.job.name == "train-2procs-2"
    assert plan.job.args == ("--b", "4")
    assert (plan.job.env["A"], plan.job.env["OMP_NUM_THREADS"]) == ("2", "4")
    told = json.loads(plan.job.env["ALLRANKS_STUDY"])
    assert (told["steps"], told["batch"], told["size"]) == (30, "global", 2)
    assert prepare_point(study, study.points[0]).job.env["OMP_NUM_THREADS"] == "4"


def test_threads_that_the_user_gave_are_kept() -> None:
    study = _study(env=("OMP_NUM_THREADS=3",))
    assert prepare_point(study, study.points[0]).job.env["OMP_NUM_THREADS"] == "3"


@pytest.mark.usefixtures("sbatch")
def test_a_job_file_may_not_fix_the_ranks(tmp_path: Path) -> None:
    (tmp_path / "allranks.toml").write_text("nprocs = 8\n")
    (tmp_path / "plain.toml").write_text('name = "plain"\n')
    values = {"nodes": "1,2", "script": "train.py", "site": "plain.toml"}
    with pytest.raises(UsageError, match=r"8 at every size \(nprocs in allranks.toml\)"):
        make_study(values, Ask(), config=None, command="", say=lambda _: None)
