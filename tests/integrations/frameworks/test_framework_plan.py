"""What Horovod is built of: decided beforehand, and a different wheel for each difference."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from framework_fakes import CPU_TORCH, program, target

from allranks.cli import cli
from allranks.errors import AllranksError, MissingDependencyError, UsageError
from allranks.integrations.frameworks import horovod_install, horovod_plan
from allranks.integrations.frameworks.horovod_install import installed_build
from allranks.integrations.frameworks.horovod_plan import (
    CXX17,
    LEGACY_KERAS,
    NO_XLA,
    HorovodPlan,
    apply_patches,
    compile_jobs,
    patches_for,
    plan_horovod,
)
from allranks.integrations.frameworks.import_probe import ImportResult
from allranks.integrations.frameworks.python_environment import PythonEnvironment
from allranks.integrations.frameworks.system_programs import Program

MPI = Program("/usr/bin/mpicxx", "Open MPI", "4.1.4")
GPU_TORCH = {**CPU_TORCH, "version": "2.13.0", "cuda": "12.8", "nccl": True}


@pytest.fixture(autouse=True)
def no_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(horovod_plan, "mpi_headers", lambda _: None)


def test_auto_takes_what_is_there() -> None:
    both = target(torch=CPU_TORCH, packages={"tensorflow": "2.21.0"})
    assert plan_horovod(both, "auto", False).parts == ["torch", "tensorflow"]
    assert plan_horovod(both, "torch", False).parts == ["torch"]
    assert plan_horovod(target(torch=CPU_TORCH), "auto", False).parts == ["torch"]


@pytest.mark.parametrize(
    ("asked", "lack"), [("tensorflow", "no tensorflow"), ("both", "no tensorflow")]
)
def test_a_framework_that_is_not_there(asked: str, lack: str) -> None:
    with pytest.raises(MissingDependencyError, match=rf"{lack}\.\nInstall it first: .*pip install"):
        plan_horovod(target(torch=CPU_TORCH), asked, False)
    with pytest.raises(MissingDependencyError, match="no torch or TensorFlow"):
        plan_horovod(target(), "auto", False)


def test_the_distributions_own_python_is_left_alone() -> None:
    with pytest.raises(UsageError, match=r"forbids pip.*\nMake a venv"):
        plan_horovod(target(torch=CPU_TORCH, about={"managed": True}), "auto", None)


def test_mpi_is_taken_where_it_is_and_never_silently_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = target(torch=CPU_TORCH)
    assert "without MPI" in plan_horovod(there, "auto", None).notes[0]
    assert plan_horovod(there, "auto", False).notes == ()
    with pytest.raises(MissingDependencyError, match=r"asked for with MPI.*\n.*--no-mpi"):
        plan_horovod(there, "auto", True)
    monkeypatch.setattr(horovod_plan, "mpi_headers", lambda _: MPI)
    assert plan_horovod(there, "auto", None).mpi is MPI


def _plan(there: PythonEnvironment, **changes: object) -> HorovodPlan:
    values = {"torch": "2.13.0", "tensorflow": None, "mpi": MPI, "nccl": None, **changes}
    return HorovodPlan(there, **values)  # type: ignore[arg-type]


def test_every_difference_is_another_wheel() -> None:
    there = target(torch=CPU_TORCH)
    plans = [
        _plan(there),
        _plan(there, torch="2.12.0"),
        _plan(there, tensorflow="2.21.0"),
        _plan(target(packages={"tf_keras": "2.21.0"}), tensorflow="2.21.0"),
        _plan(there, mpi=None),
        _plan(there, mpi=Program("", "MPICH", "5.0.2")),
        _plan(there, nccl="/usr"),
        _plan(target(about={"tag": "cp312"})),
        _plan(target(about={"platform": "linux_aarch64"})),
    ]
    keys = {plan.key for plan in plans}
    assert len(keys) == len(plans)
    assert all("/" not in key and " " not in key for key in keys)
    assert plans[0].key == "horovod0.28.1-r1-cp311-linux_x86_64-torch2.13.0-Open_MPI_4.1.4"


@pytest.mark.parametrize(
    ("changes", "built", "stays"),
    [
        ({}, {"mpi": True}, True),
        ({}, {"mpi": False}, False),
        ({"nccl": "/usr"}, {"mpi": True}, False),
        ({"nccl": "/usr"}, {"mpi": True, "nccl": True}, True),
        ({"mpi": None}, {"mpi": True}, True),
        ({"mpi": None, "no_mpi": True}, {"mpi": True}, False),
        ({"mpi": None, "no_mpi": True}, {"mpi": False}, True),
    ],
)
def test_built_again_when_more_or_less_is_asked_for(
    changes: dict[str, object],
    built: dict[str, bool],
    stays: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = {"gloo": True, "nccl": False, "cuda": False, "rocm": False, **built}
    monkeypatch.setattr(horovod_install, "probe_horovod", lambda *_: ImportResult(said))
    horovod = {"version": "0.28.1", "torch": "2.13.0", "tensorflow": None}
    there = target(torch=CPU_TORCH, horovod=horovod)
    assert installed_build(_plan(there, **changes)) == (said if stays else None)


def test_no_mpi_is_known_to_have_been_typed() -> None:
    there = target(torch=CPU_TORCH)
    assert plan_horovod(there, "auto", False).no_mpi
    assert not plan_horovod(there, "auto", None).no_mpi


def test_horovods_own_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MAKEFLAGS", raising=False)
    chosen = _plan(target(), mpi=None, nccl="/opt/nccl").variables
    assert chosen["HOROVOD_WITHOUT_MPI"] == chosen["HOROVOD_WITHOUT_TENSORFLOW"] == "1"
    assert chosen["HOROVOD_WITH_PYTORCH"] == chosen["HOROVOD_WITH_GLOO"] == "1"
    assert chosen["HOROVOD_GPU_OPERATIONS"] == "NCCL"
    assert chosen["MAKEFLAGS"] == f"-j{compile_jobs()}"
    monkeypatch.setenv("MAKEFLAGS", "-j1")
    assert _plan(target()).variables["MAKEFLAGS"] == "-j1"


def test_nccl_only_with_all_that_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOROVOD_NCCL_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    there = target(str(tmp_path / "bin" / "python"), torch=GPU_TORCH, nccl="/site/nvidia/nccl")
    assert "nvcc is not on PATH" in plan_horovod(there, "auto", False).notes[0]
    program(tmp_path / "bin", "nvcc", "")
    assert plan_horovod(there, "auto", False).nccl == "/site/nvidia/nccl"


def test_keras_3_alone_is_noted() -> None:
    there = target(packages={"tensorflow": "2.21.0", "keras": "3.15.1"})
    assert "needs tf_keras" in plan_horovod(there, "auto", False).notes[0]


def test_patches(tmp_path: Path) -> None:
    assert patches_for(True, False, True) == [CXX17]
    assert patches_for(False, True, False) == [NO_XLA]
    chosen = patches_for(True, True, True)
    assert chosen == [CXX17, NO_XLA, LEGACY_KERAS]
    lines = "set(CMAKE_CXX_STANDARD 14)\nlist(APPEND A x/xla_mpi_ops.cc)\nlist(APPEND A b.cc)\n"
    lines += "    from keras import backend as K\n"
    for patch in chosen:
        for name in patch.files:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(lines)
    apply_patches(chosen, tmp_path)
    assert "STANDARD 17" in (tmp_path / "horovod/torch/CMakeLists.txt").read_text()
    changed = (tmp_path / "horovod/tensorflow/CMakeLists.txt").read_text()
    assert "xla" not in changed
    assert "list(APPEND A b.cc)" in changed
    callbacks = (tmp_path / "horovod/tensorflow/keras/callbacks.py").read_text()
    assert "    from tf_keras import backend as K\n" in callbacks
    with pytest.raises(AllranksError, match="not the one that was expected"):
        apply_patches(chosen, tmp_path)


def test_a_dry_run_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    asked = []

    def found(*which: str | None) -> PythonEnvironment:
        asked.append(which)
        return target(torch=CPU_TORCH)

    monkeypatch.setattr("allranks.cli.frameworks._target", found)
    words = ["install", "horovod", "--dry-run", "--no-mpi"]
    done = CliRunner().invoke(cli, ["frameworks", *words, "--venv", "a"])
    assert done.exit_code == 0, done.output
    CliRunner().invoke(cli, ["frameworks", "--venv", "b", *words])
    CliRunner().invoke(cli, ["frameworks", "--venv", "b", *words, "--python", "c"])
    assert asked == [(None, "a"), (None, "b"), ("c", None)]
    assert "for     torch 2.13.0+cpu\nwith    gloo\n" in done.output
    assert "patch   C++17" in done.output
    assert not (tmp_path / "cache").exists()
