"""Where a study runs, and what its points are asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from allranks.errors import JobError, UsageError
from allranks.observe.scaling.point_plans import prepare_point
from allranks.observe.scaling.scaling_study import Study
from allranks.observe.scaling.sizes import choose_axis
from allranks.observe.scaling.study_request import choose_execution, make_study

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
    return choose_execution(choose_axis(values), place)


def test_without_slurm_all_is_here() -> None:
    assert _place(PROCS) == "local"
    assert _place({"gpus_per_node": "1,2"}) == "local"
    with pytest.raises(UsageError, match=r"no sbatch here(.|\n)*allranks sandbox up$"):
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
    return make_study(values, kind="strong", steps=30, repeat=2, say=lambda _: None)


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


@pytest.mark.parametrize("around", ["", "8"])
def test_threads_that_the_user_gave_are_kept_and_counted(
    around: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(4)))
    monkeypatch.setenv("OMP_NUM_THREADS", around)
    study = _study(env=("OMP_NUM_THREADS=3",))
    assert prepare_point(study, study.points[0]).job.env["OMP_NUM_THREADS"] == "3"
    assert [point.cpus for point in study.points[:2]] == [3, 6]
    assert [study.shares_cores(point) for point in study.points[:2]] == [False, True]


def test_threads_of_the_environment_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(4)))
    monkeypatch.setenv("OMP_NUM_THREADS", "4,2")
    study = _study()
    assert "OMP_NUM_THREADS" not in prepare_point(study, study.points[0]).job.env
    assert [study.shares_cores(point) for point in study.points[:2]] == [False, True]


def _ask(tmp_path: Path, script: str, *, said: list[str] | None = None, **ask: Any) -> Study:
    (tmp_path / "train.py").write_text(script)
    values = {"nprocs": "1,2", "script": "train.py"}
    say = [].append if said is None else said.append
    return make_study(values, say=say, **ask)


def test_a_time_needs_a_word_about_the_work(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"wall time(.|\n)*--strong(.|\n)*--metric"):
        _ask(tmp_path, "print(1)\n")
    with pytest.raises(UsageError, match=r"time of a step(.|\n)*--strong"):
        _ask(tmp_path, "import allranks\n", metric=r"(?P<seconds>[\d.]+) s")
    assert not (tmp_path / "runs").exists()
    assert _ask(tmp_path, "print(1)\n", kind="strong").kind == "strong"
    assert _ask(tmp_path, "print(1)\n", metric=r"([\d.]+) samples/s").kind is None
    (tmp_path / "own.py").write_text("from allranks import Trainer\n")
    assert _ask(tmp_path, "import own\n").kind is None


def test_gpus_that_are_not_there_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("allranks.schedulers.local.local_gpus", lambda: 0)
    values = {"gpus_per_node": "1,2", "script": "train.py"}
    with pytest.raises(JobError, match=r"--gpus-per-node 1: this machine has no GPU\.$"):
        make_study(values, kind="strong", say=lambda _: None)


def test_few_steps_are_raised_to_what_can_be_measured(tmp_path: Path) -> None:
    said: list[str] = []
    assert _ask(tmp_path, "import allranks\n", steps=10, said=said).steps == 20
    assert said == ["--steps 10 are too few to measure: a Trainer does 20."]
    assert _ask(tmp_path, "print(1)\n", steps=10, metric="(1)", said=said).steps == 10
    assert len(said) == 1


@pytest.mark.usefixtures("sbatch")
@pytest.mark.parametrize(("alone", "cores"), [(True, [64, 128]), (False, [8, 16])])
def test_a_job_alone_on_its_nodes_pays_for_all_their_cores(
    alone: bool, cores: list[int], tmp_path: Path
) -> None:
    (tmp_path / "big.toml").write_text(
        'name = "big"\n[shapes.fat]\ncpus = 64\n'
        '[[partitions]]\nname = "p"\ndefault = true\nshapes = ["fat"]\n'
    )
    values = {"nodes": "1,2", "script": "train.py", "site": "big.toml", "tasks_per_node": "2"}
    values |= {"cpus_per_task": "4"} | ({"exclusive": True} if alone else {})
    study = make_study(values, kind="strong", say=lambda _: None)
    assert [point.cpus for point in study.points] == cores


@pytest.mark.usefixtures("sbatch")
def test_a_job_file_may_not_fix_the_ranks(tmp_path: Path) -> None:
    (tmp_path / "allranks.toml").write_text("nprocs = 8\n")
    (tmp_path / "plain.toml").write_text('name = "plain"\n')
    values = {"nodes": "1,2", "script": "train.py", "site": "plain.toml"}
    with pytest.raises(UsageError, match=r"8 at every size \(nprocs in allranks.toml\)"):
        make_study(values, say=lambda _: None)
