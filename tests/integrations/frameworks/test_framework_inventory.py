"""The rows of ``allranks frameworks``: versions, launchers, what is missing and what to type."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from framework_fakes import CPU_TORCH, horovod_package, package, python_with, target, torch_package

from allranks.cli.frameworks import frameworks
from allranks.integrations.frameworks import inventory
from allranks.integrations.frameworks import missing_requirements as missing
from allranks.integrations.frameworks.import_probe import ImportResult, probe_horovod, run_probe
from allranks.integrations.frameworks.inventory import LAUNCHERS, Inventory, Tools, take_inventory
from allranks.integrations.frameworks.python_environment import PythonEnvironment
from allranks.integrations.frameworks.system_programs import Program
from allranks.job.launchers import LAUNCHERS as OURS
from command_rig import ROOT


def test_launchers_that_exist() -> None:
    assert {name for names in LAUNCHERS.values() for name in names} <= set(OURS)


def test_an_empty_python_is_told_what_to_type() -> None:
    rows = {each.name: each for each in _take(target(), Tools()).frameworks}
    assert all(each.version is None for each in rows.values())
    assert rows["torch"].missing[0].command.endswith("pip install torch")
    assert "frameworks install horovod" in rows["Horovod"].missing[0].command
    assert "pip install torch &&" in rows["Horovod"].missing[0].command


def _take(there: PythonEnvironment, tools: Tools) -> Inventory:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inventory, "find_tools", lambda _: tools)
        return take_inventory(there)


def test_a_horovod_for_another_torch() -> None:
    horovod = {"version": "0.28.1", "torch": "2.12.1", "tensorflow": None}
    there = target("/envs/train/bin/python", torch=CPU_TORCH, horovod=horovod)
    lacks = missing.in_horovod(there, {})
    assert lacks[0].what == "built for torch 2.12.1, but 2.13.0+cpu is there"
    assert lacks[0].command.endswith("install horovod --force --python /envs/train/bin/python")
    same = target(torch=CPU_TORCH, horovod={"torch": "2.13.0", "tensorflow": None})
    assert missing.in_horovod(same, {}) == []


def test_a_horovod_that_crashes_is_told() -> None:
    there = target(torch=CPU_TORCH, horovod={"torch": "2.13.0", "tensorflow": None})
    lacks = missing.in_horovod(there, {"torch": ImportResult(problem="import horovod.torch: boom")})
    assert lacks[0].what == "import horovod.torch: boom"


def test_mpirun_only_for_a_horovod_with_mpi() -> None:
    horovod = {"version": "0.28.1", "torch": "2.13.0", "tensorflow": None}
    there = target(torch=CPU_TORCH, horovod=horovod)
    for mpi in (True, False):
        answers = {"torch": ImportResult({"gloo": True, "mpi": mpi})}
        tools = Tools(mpirun=Program("/usr/bin/mpirun", "Open MPI", "4.1.4"), answers=answers)
        row = next(each for each in _take(there, tools).frameworks if each.name == "Horovod")
        assert ("mpirun" in row.launchers) is mpi


def test_torchs_launchers_only_for_a_horovod_of_torch() -> None:
    horovod = {"version": "0.28.1", "torch": None, "tensorflow": "2.21.0"}
    there = target(torch=CPU_TORCH, packages={"tensorflow": "2.21.0"}, horovod=horovod)
    rows = {each.name: each.launchers for each in _take(there, Tools()).frameworks}
    assert rows["Horovod"] == ("horovod", "srun", "fork")
    assert rows["TensorFlow"] == ("srun", "fork", "torchrun", "python")


@pytest.mark.parametrize("name", ["DeepSpeed", "Accelerate", "transformers"])
def test_scripts_that_every_launcher_of_torch_starts(name: str) -> None:
    started = {"fork", "srun", "torchrun", "launch", "accelerate", "deepspeed", "mpirun"}
    assert set(LAUNCHERS[name]) == started


def test_only_launchers_whose_program_is_there() -> None:
    bare = _take(target(torch=CPU_TORCH, packages={"accelerate": "1.15.0"}), Tools())
    rows = {each.name: each.launchers for each in bare.frameworks}
    assert rows["torch"] == ("fork", "srun", "torchrun", "launch", "python")
    assert "accelerate" in rows["Accelerate"]
    assert not {"deepspeed", "mpirun"} & set(rows["Accelerate"])


def test_keras_3_needs_tf_keras_beside_it() -> None:
    there = target(packages={"tensorflow": "2.21.0", "keras": "3.15.1"})
    assert "--no-deps 'tf_keras==2.21.*'" in missing.keras(there)[0].command
    assert missing.keras(target(packages={"keras": "3.15.1", "tf_keras": "2.21.0"})) == []
    assert missing.keras(target(packages={"tensorflow": "2.15.0", "keras": "2.15.0"})) == []


def test_mpi4py_with_another_mpi_than_mpirun() -> None:
    there = target(packages={"mpi4py": "4.1.2"})
    lacks = missing.mpi_library(there, ImportResult({"library": "Open MPI v4.1.4"}), "MPICH")
    assert "each process would be alone" in lacks[0].what
    assert (
        missing.mpi_library(there, ImportResult({"library": "Open MPI v4.1.4"}), "Open MPI") == []
    )
    intel = ImportResult({"library": "Intel(R) MPI Library 2021.9 for Linux* OS"})
    assert missing.mpi_library(there, intel, "Intel MPI") == []
    other = missing.mpi_library(there, intel, "Open MPI")[0].what
    assert other.startswith("mpi4py loads Intel MPI Library 2021.9")
    none = missing.mpi_library(there, ImportResult(problem="cannot load MPI library"), "MPICH")
    assert "cannot load MPI library" in none[0].what


def test_a_crash_and_a_silence_are_told_in_one_line() -> None:
    there = target()
    crash = run_probe(there, "import os; os.kill(os.getpid(), 11)", "import x")
    assert crash.problem == "import x: it crashed (SIGSEGV)"
    failed = run_probe(there, "raise ImportError('libmpi.so.40: cannot open')", "import x")
    assert failed.problem == "import x: ImportError: libmpi.so.40: cannot open"
    slow = run_probe(there, "import time; time.sleep(9)", "import x", limit=0.3)
    assert slow.problem == "import x did not end within 0 s"


def test_horovod_is_asked_alone_even_inside_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_RANK", "1")
    monkeypatch.setenv("SLURM_PROCID", "1")
    monkeypatch.setenv("HOROVOD_NCCL_HOME", "/opt/nccl")
    env = target().process_environment()
    assert "HOROVOD_RANK" not in env
    assert "SLURM_PROCID" not in env
    assert env["HOROVOD_NCCL_HOME"] == "/opt/nccl"
    assert "No module named 'horovod'" in probe_horovod(target(), "torch").problem


@pytest.fixture
def fake(tmp_path: Path) -> str:
    packages = tmp_path / "packages"
    torch_package(packages, "16ProcessGroupGloo")
    package(packages, "deepspeed", "0.19.8")
    horovod_package(packages, pytorch="2.13.0")
    return python_with(tmp_path, packages)


def test_the_table_fits_80_columns(fake: str) -> None:
    done = CliRunner().invoke(frameworks, ["--python", fake], env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    assert re.search(r"^torch +2\.13\.0\+x +CPU, gloo +fork srun", done.output, re.MULTILINE)
    assert "Horovod: import horovod.torch:" in done.output
    told = [line for line in done.output.splitlines() if "/" not in line]
    assert max(map(len, told)) <= 80


def test_the_distributions_python_needs_a_venv_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = target("/usr/bin/python3", about={"managed": True, "venv": False})
    found = _take(there, Tools())
    rows = {each.name: each.missing[0].command for each in found.frameworks}
    assert rows["torch"] == "/usr/bin/python3 -m venv train && train/bin/pip install torch"
    assert rows["Horovod"] == (
        rows["torch"] + " && allranks frameworks install horovod --venv train"
    )
    monkeypatch.setattr("allranks.cli.frameworks._target", lambda *_: there)
    monkeypatch.setattr(inventory, "find_tools", lambda _: Tools())
    text = CliRunner().invoke(frameworks, env={"COLUMNS": "80"}).output
    assert "forbids pip there.\nMake a venv" in text
    assert text.count("-m venv train\n") == 1
    assert "It cannot make one yet: " in text
    assert "\ntorch         train/bin/pip install torch\n" in text


def test_a_new_venv_sees_the_frameworks_of_the_distribution() -> None:
    there = target("/usr/bin/python3", torch=CPU_TORCH, about={"managed": True})
    assert missing.horovod(there).command == (
        "/usr/bin/python3 -m venv --system-site-packages train"
        " && allranks frameworks install horovod --venv train"
    )


def test_json_is_stable(fake: str) -> None:
    done = CliRunner().invoke(frameworks, ["--python", fake, "--json"])
    data = json.loads(done.output)
    assert set(data) == {"python", "frameworks", "programs", "mpi_headers"}
    assert [each["name"] for each in data["frameworks"]] == [
        "torch", "DeepSpeed", "Accelerate", "transformers", "Horovod", "TensorFlow", "mpi4py",
        "MPI",
    ]  # fmt: skip
    torch = data["frameworks"][0]
    assert set(torch) == {"name", "version", "built_with", "launchers", "missing"}
    assert torch["built_with"] == {
        "cuda": None, "rocm": None, "nccl": False, "gloo": True, "mpi": False,
    }  # fmt: skip
    absent = data["frameworks"][3]
    assert absent["version"] is None
    assert set(absent["missing"][0]) == {"what", "type"}
    assert set(data["programs"]) == {"g++", "cmake", "ninja", "make", "mpirun"}
    page = (ROOT / "docs" / "frameworks" / "install.md").read_text()
    for key in (*data, *torch, *torch["built_with"], *absent["missing"][0], *data["programs"]):
        assert f"`{key}`" in page
