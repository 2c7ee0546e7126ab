"""Modules, conda and uv on the cluster: what a rank finds is what was loaded and activated.

environment-modules is the real one, and so is Lmod, which is run in another Debian as the two cannot be
installed together. conda is a stand-in (tests/conda_standin.py).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from container_rig import ROOTS, slurm_root

from command_rig import Allranks
from conda_standin import make_conda

pytestmark = [pytest.mark.slow, pytest.mark.slurm, pytest.mark.timeout(300)]

INITS = ("/etc/profile.d/modules.sh", "/etc/profile.d/lmod.sh")
INIT = next((path for path in INITS if Path(path).exists()), "")
with_modules = pytest.mark.skipif(
    not INIT, reason="neither environment-modules nor Lmod is installed"
)

TELL = """
import json, os, shutil, subprocess, sys
names = ("RANK", "FLAVOUR", "OTHER", "OLD", "LOADEDMODULES", "CONDA_DEFAULT_ENV", "CONDA_SHLVL", "VIRTUAL_ENV")
known = {name: os.environ.get(name) for name in names}
known |= {"prefix": sys.prefix, "tool": shutil.which("my-tool")}
os.write(1, ("tell " + json.dumps(known) + "\\n").encode())
"""
SIZE = ["-t", "5m", "--nodes", "2", "--nprocs", "4"]


@pytest.fixture(autouse=True)
def tell(tmp_path: Path) -> None:
    (tmp_path / "tell.py").write_text(TELL)


def told(done: subprocess.CompletedProcess[str], ranks: int = 1) -> dict[str, str | None]:
    """What the ranks said; all must have said the same."""
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.partition("tell ")[2] for line in done.stdout.splitlines() if "tell {" in line]
    found = [json.loads(line) for line in lines]
    assert len(found) == ranks, done.stdout + done.stderr
    for each in found:
        each.pop("RANK")
        assert each == found[0]
    return dict(found[0])


@pytest.fixture
def modules(tmp_path: Path) -> dict[str, str]:
    """Two modules, and an older one that a user's shell has loaded."""
    (tmp_path / "tool/bin").mkdir(parents=True)
    (tmp_path / "tool/bin/my-tool").write_text("#!/bin/sh\n")
    (tmp_path / "tool/bin/my-tool").chmod(0o755)
    files = {
        "compiler/12": f"setenv FLAVOUR gcc12\nprepend-path PATH {tmp_path}/tool/bin\n",
        "torch/2.1": "prereq compiler\nsetenv OTHER torch2.1\n",
        "old/1": "setenv OLD still-there\n",
    }
    for name, text in files.items():
        path = tmp_path / "modulefiles" / name
        path.parent.mkdir(parents=True)
        path.write_text(f"#%Module1.0\n{text}")
    return {"MODULEPATH": str(tmp_path / "modulefiles")}


@with_modules
@pytest.mark.parametrize("where", ["batch", "node"])
def test_modules_are_loaded_in_a_shell_that_knows_none(
    where: str, slurm: Allranks, modules: dict[str, str], tmp_path: Path
) -> None:
    loads = ["--load", "compiler/12", "--load", "torch", "--setup-on", where]
    found = told(slurm("submit", *SIZE, *loads, "--follow", "tell.py", **modules), ranks=4)
    assert (found["FLAVOUR"], found["OTHER"], found["OLD"]) == ("gcc12", "torch2.1", None)
    assert found["tool"] == f"{tmp_path}/tool/bin/my-tool"
    assert found["LOADEDMODULES"] == "compiler/12:torch/2.1"


@with_modules
@pytest.mark.parametrize("purge", [True, False])
def test_modules_of_the_submitting_shell(
    purge: bool, slurm_env: dict[str, str], modules: dict[str, str], tmp_path: Path
) -> None:
    """The shell hands its functions and what it has loaded to the job; a purge forgets the latter."""
    option = "--module-purge" if purge else "--no-module-purge"
    words = ["submit", "-t", "5m", "--load", "compiler", option, "--follow", "tell.py"]
    shell = f'. {INIT}; module load old; exec "$0" -m allranks "$@"'
    done = subprocess.run(
        ["bash", "-c", shell, sys.executable, *words],
        cwd=tmp_path, env={**slurm_env, **modules}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    found = told(done)
    assert (found["FLAVOUR"], found["OLD"]) == ("gcc12", None if purge else "still-there")


@with_modules
@pytest.mark.parametrize(
    ("where", "names"), [("batch", ["nowhere/1"]), ("node", ["compiler", "nowhere/1"])]
)
def test_a_module_that_is_not_there_ends_the_job(
    where: str, names: list[str], slurm: Allranks, modules: dict[str, str]
) -> None:
    loads = [word for name in names for word in ("--load", name)]
    words = ["-t", "5m", *loads, "--setup-on", where, "--follow", "tell.py"]
    done = slurm("submit", *words, **modules)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "tell {" not in done.stdout
    assert "nowhere/1" in done.stdout + done.stderr


@pytest.fixture
def conda(tmp_path: Path) -> Path:
    return make_conda(tmp_path / "my conda", "torch", "other")


@pytest.mark.parametrize(
    ("where", "name"), [("batch", "torch"), ("node", "PREFIX"), ("batch", "base")]
)
def test_conda_by_name_and_by_prefix(where: str, name: str, slurm: Allranks, conda: Path) -> None:
    prefix = conda if name == "base" else conda / "envs/torch"
    name = str(prefix) if name == "PREFIX" else name
    words = [
        "--conda",
        name,
        "--conda-root",
        str(conda),
        "--setup-on",
        where,
        "--follow",
        "tell.py",
    ]
    found = told(slurm("submit", *SIZE, *words), ranks=4)
    assert (found["prefix"], found["CONDA_DEFAULT_ENV"]) == (str(prefix), name)
    assert found["FLAVOUR"] == f"conda {name}"


@pytest.mark.parametrize("known", ["PATH", "CONDA_EXE"])
def test_conda_is_found_where_the_user_has_it(
    known: str, slurm: Allranks, conda: Path, slurm_env: dict[str, str]
) -> None:
    """With another environment active there, as a user's shell would have."""
    changes = {"CONDA_PREFIX": str(conda / "envs/other"), "CONDA_SHLVL": "1"}
    if known == "PATH":
        changes["PATH"] = f"{conda}/envs/other/bin:{conda}/condabin:{slurm_env['PATH']}"
    else:
        changes["CONDA_EXE"] = str(conda / "bin/conda")
    words = ["submit", "-t", "5m", "--conda", "torch", "--follow", "tell.py"]
    found = told(slurm(*words, **changes))
    assert (found["prefix"], found["CONDA_SHLVL"]) == (f"{conda}/envs/torch", "2")


@pytest.mark.parametrize("name", ["missing", "./missing"])
def test_an_environment_that_is_not_there_ends_the_job(
    name: str, slurm: Allranks, conda: Path
) -> None:
    words = ["-t", "5m", "--conda", name, "--conda-root", str(conda), "--follow", "tell.py"]
    done = slurm("submit", *words)
    assert done.returncode == 1
    assert "tell {" not in done.stdout
    kind = "EnvironmentLocationNotFound" if "/" in name else "EnvironmentNameNotFound"
    assert kind in done.stdout


UV = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")


@pytest.mark.skipif(not UV, reason="uv is not installed")
def test_a_project_of_uv(slurm: Allranks, tmp_path: Path) -> None:
    """uv makes the environment, without the network; its own way to run agrees with ours."""
    project = tmp_path / "my project"
    project.mkdir()
    (project / "pyproject.toml").write_text(
        '[project]\nname = "mine"\nversion = "1"\nrequires-python = ">=3.10"\ndependencies = []\n'
    )
    offline = ["--offline", "--project", str(project)]
    uv = [UV, "sync", *offline, "--python", sys.executable]
    subprocess.run(uv, check=True, capture_output=True)
    own = [UV, "run", *offline, "--no-sync", "python", "-c", "import sys; print(sys.prefix)"]
    said = subprocess.run(own, check=True, capture_output=True, text=True).stdout.strip()
    found = told(slurm("submit", "-t", "5m", "--uv", str(project), "--follow", "tell.py"))
    assert found["prefix"] == said == str(project / ".venv")


@pytest.mark.skipif(Path(INITS[1]).exists(), reason="Lmod is here: the tests above used it")
@pytest.mark.timeout(1200)
def test_modules_with_lmod_in_a_newer_debian(capsys: pytest.CaptureFixture[str]) -> None:
    root = ROOTS / "trixie"
    for words in (("make", "trixie", root), ("add", root, "lmod")):
        made = slurm_root(*words, timeout=900)
        assert made.returncode == 0, made.stdout
    pytest_words = (
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "slow",
        "-k",
        "knows_none or submitting_shell or module_that",
        __file__,
    )
    done = slurm_root("run", root, "--", sys.executable, "-m", "pytest", *pytest_words, timeout=900)
    assert done.returncode == 0, "\n".join(done.stdout.splitlines()[-150:])
    last = done.stdout.splitlines()[-1]
    assert " passed" in last, last
    assert "skipped" not in last, last
    with capsys.disabled():
        print(f"\nLmod: {last}")
