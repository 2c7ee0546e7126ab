"""What a Python has is found without importing it."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest
from framework_fakes import horovod_package, package, program, python_with, target, torch_package

from allranks.errors import UsageError
from allranks.integrations.frameworks import interpreter_probe as probe
from allranks.integrations.frameworks.python_environment import (
    PythonEnvironment,
    choose_python,
    probe_python,
)


def test_our_own_python() -> None:
    found = probe_python(sys.executable)
    assert found.about["version"] == ".".join(map(str, sys.version_info[:3]))
    assert found.packages["packaging"] == importlib.metadata.version("packaging")
    assert found.about["prefix"] == sys.prefix


@pytest.mark.torch
def test_our_own_torch_is_told_as_it_is() -> None:
    torch = pytest.importorskip("torch")
    import torch.distributed as dist

    found = probe_python(sys.executable).torch
    assert found == {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "rocm": torch.version.hip,
        "gloo": dist.is_gloo_available(),
        "nccl": dist.is_nccl_available(),
        "mpi": dist.is_mpi_available(),
    }


def test_nothing_heavy_is_imported() -> None:
    code = Path(probe.__file__).read_text() + "\nprint(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert not loaded & {"torch", "tensorflow", "horovod", "deepspeed", "transformers", "numpy"}


def test_a_torch_for_gpus_and_with_mpi(tmp_path: Path) -> None:
    groups = ("16ProcessGroupGloo", "16ProcessGroupNCCL", "15ProcessGroupMPI")
    torch_package(tmp_path / "packages", *groups, cuda="12.8")
    found = probe_python(python_with(tmp_path, tmp_path / "packages"))
    assert found.torch == {
        "version": "2.13.0+x", "cuda": "12.8", "rocm": None,
        "gloo": True, "nccl": True, "mpi": True,
    }  # fmt: skip


def test_horovod_and_tensorflow_under_another_name(tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    package(packages, "tensorflow_cpu", "2.21.0")
    horovod_package(packages, tensorflow="2.20.0")
    found = probe_python(python_with(tmp_path, packages))
    assert found.tensorflow == "2.21.0"
    assert found.horovod == {"version": "0.28.1", "torch": None, "tensorflow": "2.20.0"}


def test_the_folder_we_stand_in_is_not_a_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "horovod.py").write_text("raise SystemExit(3)\n")
    monkeypatch.chdir(tmp_path)
    assert probe_python(sys.executable).packages["horovod"] is None


def test_what_is_no_python(tmp_path: Path) -> None:
    wrong = program(tmp_path, "python", "echo 'no, thanks' >&2; exit 3")
    with pytest.raises(UsageError, match=r"is not a Python that allranks can inspect.*no, thanks"):
        probe_python(str(wrong))
    with pytest.raises(UsageError, match=r"\(3\.8 or newer\)\.$"):
        probe_python("/bin/ls")
    long = program(tmp_path, "long", "printf 'x%.0s' $(seq 300) >&2; exit 3")
    with pytest.raises(UsageError, match=r": x{200}$"):
        probe_python(str(long))
    with pytest.raises(UsageError, match="cannot be started: No such file"):
        probe_python(str(tmp_path / "nothing"))
    slow = program(tmp_path, "slow", "sleep 5")
    with pytest.raises(UsageError, match="did not answer"):
        probe_python(str(slow), limit=0.2)


def test_which_python_is_meant(tmp_path: Path) -> None:
    venv = program(tmp_path / "env" / "bin", "python", "").parents[1]
    inside = str(venv / "bin" / "python")
    assert choose_python(None, str(venv), "x") == inside
    assert choose_python(str(venv), None, "x") == inside
    assert choose_python(inside, None, "x") == inside
    assert choose_python(None, None, "x") == "x"
    with pytest.raises(UsageError, match="not both"):
        choose_python("a", "b", "x")
    with pytest.raises(UsageError, match=r"there is no .*bin/python\.\nMake one with: python3 -m"):
        choose_python(None, str(tmp_path), "x")
    with pytest.raises(UsageError, match="no such program"):
        choose_python("python9.9", None, "x")


def test_a_pip_command_that_works_for_a_python_without_pip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "path"
    monkeypatch.setenv("PATH", str(path))
    own = "/envs/train/bin/python"
    assert _bare().pip_command("install", "x") == f"{own} -m ensurepip && {own} -m pip install x"
    program(path, "pip", "echo pip 22.0.2 from /usr/lib")
    assert "-m ensurepip" in _bare().pip_command("install", "x"), "22.0 has no --python"
    program(path, "pip", "echo pip 22.3 from /usr/lib")
    assert _bare().pip_command("install", "x") == f"pip --python {own} install x"
    program(path, "uv", "")
    assert _bare().pip_command("install", "x") == f"uv pip install --python {own} x"


def _bare() -> PythonEnvironment:
    return target("/envs/train/bin/python", packages={"pip": None})


def test_the_active_python_by_any_of_its_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = program(tmp_path, "python3", "")
    (tmp_path / "python").symlink_to("python3")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert target(str(python)).pip_command("install", "x") == f"{python} -m pip install x"
    program(tmp_path, "pip", "")
    assert target(str(python)).pip_command("install", "x") == "pip install x"
    assert (
        target(str(python)).allranks_command("install", "horovod")
        == "allranks frameworks install horovod"
    )
    monkeypatch.setenv("PATH", str(tmp_path / "other"))
    assert target(str(python)).pip_command("install", "x") == f"{python} -m pip install x"
