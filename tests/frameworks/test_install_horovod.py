"""``allranks frameworks install horovod`` for real: into a fresh venv, and every way it ends badly."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from framework_rig import environment

from allranks.integrations.frameworks.horovod_plan import plan_horovod
from allranks.integrations.frameworks.python_environment import probe_python
from allranks.integrations.frameworks.wheel_cache import find_wheel
from command_rig import Allranks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
BIN = Path(sys.executable).parent


@pytest.fixture
def path() -> str:
    """PATH without the tests' own venv, which has an MPI of its own."""
    words = os.environ["PATH"].split(os.pathsep)
    return os.pathsep.join(word for word in words if Path(word) != BIN)


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """A fresh venv that sees the packages of the tests, torch among them, and no Horovod."""
    pytest.importorskip("torch")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "fresh"], check=True)
    packages = next((tmp_path / "fresh" / "lib").glob("python*/site-packages"))
    here = Path(pytest.importorskip("numpy").__file__).parents[1]
    (packages / "torch.pth").write_text(f"{here}\n")
    return tmp_path / "fresh"


def _has_horovod(venv: Path) -> bool:
    return any((venv / "lib").glob("python*/site-packages/horovod*"))


def test_out_of_the_cache_into_a_fresh_venv(
    allranks: Allranks, venv: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment("horovod")
    monkeypatch.setenv("PATH", path)
    plan = plan_horovod(probe_python(str(venv / "bin" / "python")), "torch", None)
    if find_wheel(plan.key) is None:
        pytest.skip(f"no wheel was built on this machine: {plan.key}")
    words = ("frameworks", "install", "horovod", "--venv", str(venv))
    done = allranks(*words, PATH=path)
    assert done.returncode == 0, done.stderr
    assert "using the cached wheel" in done.stderr
    assert "for torch, with gloo" in done.stdout
    assert (venv / "bin" / "horovodrun").exists()
    shown = allranks("frameworks", "--venv", str(venv), PATH=path)
    assert "Horovod" in shown.stdout.partition("Not there")[0]
    assert "Missing" not in shown.stdout
    again = allranks(*words, PATH=path)
    assert "is already installed" in again.stdout


def test_no_compiler(allranks: Allranks, venv: Path, tmp_path: Path) -> None:
    done = allranks(
        "frameworks", "install", "horovod", "--venv", str(venv),
        PATH=str(tmp_path / "nothing"), XDG_CACHE_HOME=str(tmp_path / "cache"),
    )  # fmt: skip
    assert done.returncode == 4
    assert "Horovod is compiled, but g++ and make cannot be found." in done.stderr
    assert "Traceback" not in done.stderr
    assert not _has_horovod(venv)


def test_no_network(allranks: Allranks, venv: Path, path: str, tmp_path: Path) -> None:
    done = allranks(
        "frameworks", "install", "horovod", "--venv", str(venv), "--no-mpi", PATH=path,
        XDG_CACHE_HOME=str(tmp_path / "cache"), PIP_NO_INDEX="1", PIP_FIND_LINKS="",
    )  # fmt: skip
    assert done.returncode == 4
    assert "could not be fetched; perhaps there is no network here." in done.stderr
    assert "The whole log: " in done.stderr
    assert not _has_horovod(venv)


def test_a_compiler_that_fails(allranks: Allranks, venv: Path, path: str, tmp_path: Path) -> None:
    compiler = tmp_path / "broken" / "c++"
    compiler.parent.mkdir()
    compiler.write_text("#!/bin/sh\necho 'x.cc:1:1: error: broken on purpose' >&2\nexit 1\n")
    compiler.chmod(0o755)
    done = allranks(
        "frameworks", "install", "horovod", "--venv", str(venv), "--no-mpi", timeout=600,
        PATH=path, CXX=str(compiler), XDG_CACHE_HOME=str(tmp_path / "cache"),
        TMPDIR=str(_folder(tmp_path / "tmp")),
    )  # fmt: skip
    if "no network" in done.stderr:
        pytest.skip("no network here")
    assert done.returncode == 1, done.stderr
    assert "Horovod could not be built." in done.stderr
    assert "error: broken on purpose" in done.stderr
    log = Path(done.stderr.rpartition("The whole log: ")[2].strip())
    assert "broken on purpose" in log.read_text()
    assert not list((tmp_path / "tmp").glob("allranks-*"))
    assert not _has_horovod(venv)


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def test_ctrl_c_ends_the_compilers_and_leaves_nothing(
    venv: Path, path: str, tmp_path: Path, clean_env: dict[str, str]
) -> None:
    if not shutil.which("g++", path=path):
        pytest.skip("no compiler here")
    env = {**clean_env, "PATH": path, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    env["TMPDIR"] = str(_folder(tmp_path / "tmp"))
    words = ["frameworks", "install", "horovod", "--no-mpi", "--venv", str(venv)]
    process = subprocess.Popen(
        [sys.executable, "-m", "allranks", *words], env=env, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "no network" in line:
            pytest.skip("no network here")
        if line.startswith("compiling"):
            process.send_signal(signal.SIGINT)
            break
    assert process.wait(60) == 130
    assert not list((tmp_path / "tmp").glob("allranks-*"))
    assert not _has_horovod(venv)
    limit = time.monotonic() + 20
    while _mentions(tmp_path / "tmp") and time.monotonic() < limit:
        time.sleep(0.2)
    assert _mentions(tmp_path / "tmp") == []


def _mentions(folder: Path) -> list[str]:
    """Processes whose command line names the folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = process.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if f"{folder}/" in text:
            found.append(text)
    return found
